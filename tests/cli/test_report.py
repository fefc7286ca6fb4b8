"""``pipekit report``, as a user types it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipekit.ledger import claims

Printed = Callable[[str], str]


@pytest.fixture
def runs(elsewhere: Path) -> Path:
    """Return the folder of two runs, the default one of an empty working directory."""
    runs = elsewhere / "results" / "runs"
    for name, speedup in {"2026-01-01": 7.0, "2026-01-02": 2.0}.items():
        id = "pipedream-table1-vgg16-8A-pp-speedup"
        claims.record(id, speedup, "emulated", results_dir=runs / name / "table1")
        (runs / name / "provenance.json").write_text("{}")
    return runs


def counted(text: str, what: str) -> str:
    """Return what stands in a row of the table for PipeDream, which comes first."""
    line = next(line for line in text.splitlines() if line.startswith(f"│ {what} "))
    return [cell.strip() for cell in line.strip("│").split("│")][1]


def test_all_runs_count_and_the_newest_gets_the_report(printed: Printed, runs: Path) -> None:
    text = printed("report")
    passed, missed = counted(text, "pass"), counted(text, "miss")
    assert (passed, missed) == ("0", "1"), "the record of the newer run"
    assert (counted(text, "decided"), counted(text, "of them met")) == ("1%", "0%")
    path = runs / "2026-01-02" / "report.html"
    assert text.splitlines()[-1] == f"report: {path}"
    assert path.exists()
    assert path.with_suffix(".csv").exists()
    assert not (runs / "2026-01-01" / "report.html").exists()


def test_one_run_is_reported_alone(printed: Printed, runs: Path) -> None:
    text = printed(f"report {runs / '2026-01-01'}")
    assert (counted(text, "pass"), counted(text, "miss")) == ("1", "0")
    assert text.splitlines()[-1] == f"report: {runs / '2026-01-01' / 'report.html'}"


def test_a_missing_folder_gets_one_sentence(refused: Printed, elsewhere: Path) -> None:
    says = "error: no folder is named nowhere: run an experiment first, see pipekit run"
    assert refused("report nowhere") == says
