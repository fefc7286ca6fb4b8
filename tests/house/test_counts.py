"""What is counted in the house, on a small one."""

from pathlib import Path

from experiments.house.counts import Source, code_lines, long_functions

TEXT = '''"""A module.

Its docstring has three lines."""

import ast
from os import (
    path,
)


# A comment.
class Twice:
    """A class."""

    def method(self) -> str:
        """Return a text."""
        return """one

        two"""
'''


def test_code_is_neither_docstring_comment_blank_nor_import() -> None:
    assert code_lines(TEXT) == 4  # class, def, and the two lines of text that are not blank


def test_a_functions_body_has_80_lines_at_most() -> None:
    def function(lines: int) -> list[Source]:
        return [Source(Path("a.py"), 'def f():\n    """Say."""\n' + "    x = 1\n" * lines)]

    assert list(long_functions(function(80))) == []
    assert list(long_functions(function(81))) == [("a.py: f", 81)]
