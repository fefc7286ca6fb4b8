"""What is counted in the house; faults that are drawn are the changes they say, and spare what is said."""

import ast
from pathlib import Path

import pytest

from experiments.house.counts import Source, code_lines, long_functions
from experiments.house.syntax_faults import KINDS, Fault, draw, faults_of

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
        "tests/experiments/study/test_costs.py": False,
    }.items():
        assert Source(Path(path), "").is_reproduction == expected, path


SOURCE = '''"""Says 1 + 1."""
from x import report, warnings

def f(a: "int > 0", b=0):
    """Return 2 < 3."""
    if a < b and b:
        raise ValueError(f"{a + 1}: {report(a, b)}")
    warnings.warn("1", stacklevel=2)
    self.é = 1
    report(a, b)
    return [min(x - 1, b) for x in a if x], b

def __repr__(self):
    return self.a + 1
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pipekit" / "small").mkdir(parents=True)
    (tmp_path / "pipekit" / "small" / "file.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


def lines_changed(fault: Fault) -> list[str]:
    faulty = fault.put_into(SOURCE.encode()).decode()
    ast.parse(faulty)
    pairs = zip(SOURCE.splitlines(), faulty.splitlines(), strict=True)
    return [after.strip() for before, after in pairs if before != after]


def test_each_fault_is_one_changed_line(root: Path) -> None:
    faults = list(faults_of(root, "small"))
    assert [lines_changed(fault) for fault in faults if fault.line == 6] == [
        ["if (not (a < b and b)):"],
        ["if (a < b or b):"],
        ["if (a <= b) and b:"],
        ["if (a > b) and b:"],
    ]
    found = [(fault.kind, lines_changed(fault)) for fault in faults if fault.line > 8]
    assert found == [
        ("left out", ["pass"]),
        ("constant", ["self.é = 2"]),
        ("constant", ["self.é = (0)"]),
        ("left out", ["pass"]),
        ("arguments", ["(report(b, a))"]),
        ("order", ["return (([min(x - 1, b) for x in a if x], b))[::-1]"]),
        ("extreme", ["return [max(x - 1, b) for x in a if x], b"]),
        ("sign", ["return [min((x + 1), b) for x in a if x], b"]),
        ("constant", ["return [min(x - 2, b) for x in a if x], b"]),
        ("constant", ["return [min(x - (0), b) for x in a if x], b"]),
        ("condition", ["return [min(x - 1, b) for x in a if (not (x))], b"]),
    ]
    assert {fault.kind for fault in faults} == KINDS.keys()


def test_what_is_only_said_stays(root: Path) -> None:
    faults = list(faults_of(root, "small"))
    assert {fault.line for fault in faults} == {4, 6, 8, 9, 10, 11}  # 4: b=0
    assert [lines_changed(fault) for fault in faults if fault.line == 8] == [["pass"]]


def test_a_seed_draws_the_same_faults_again(root: Path) -> None:
    first, again, other = (draw(root, "small", 9, seed) for seed in (31, 31, 32))
    assert first == again != other
    assert len(set(first)) == 9
