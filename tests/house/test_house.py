"""What is counted in the house."""

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


def test_papers_and_ledger_are_known_wherever_they_stand() -> None:
    for path, expected in {
        "pipekit/ledger/outcomes.py": True,
        "experiments/study/costs.py": True,
        "experiments/gpipe/table1.py": True,
        "notebooks/gpipe/speed.ipynb": True,
        "notebooks/your_model.ipynb": False,
        "pipekit/clusters/papers.py": False,
        "experiments/bits/drive.py": False,
        "experiments/published/table.py": False,
        "tests/experiments/study/test_costs.py": False,
    }.items():
        assert Source(Path(path), "").is_reproduction == expected, path
