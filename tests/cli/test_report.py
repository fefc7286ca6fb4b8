"""``pipekit report``, as a user types it."""

from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from typer.testing import CliRunner

from pipekit.cli import app
from pipekit.ledger import claims


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of two runs, the default one of an empty working directory."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "results" / "runs"
    for name, speedup in {"2026-01-01": 7.0, "2026-01-02": 2.0}.items():
        id = "pipedream-table1-vgg16-8A-pp-speedup"
        claims.record(id, speedup, "emulated", results_dir=runs / name / "table1")
        (runs / name / "provenance.json").write_text("{}")
    return runs


def pipekit(*arguments: str) -> Any:
    return CliRunner().invoke(
        app,
        ["report", *arguments],
        catch_exceptions=False,
        env={"COLUMNS": "250", "TERMINAL_WIDTH": "250"},
    )


def printed(*arguments: str) -> str:
    result = pipekit(*arguments)
    assert result.exit_code == 0, result.output
    return str(unstyle(result.stdout))


def counted(text: str, what: str) -> str:
    """Return what stands in a row of the table for PipeDream, which comes first."""
    line = next(line for line in text.splitlines() if line.startswith(f"│ {what} "))
    return [cell.strip() for cell in line.strip("│").split("│")][1]


def test_help_has_examples() -> None:
    assert "pipekit report results/runs" in printed("--help").partition("Examples")[2]


def test_all_runs_count_and_the_newest_gets_the_report(runs: Path) -> None:
    text = printed()
    passed, missed = counted(text, "pass"), counted(text, "miss")
    assert (passed, missed) == ("0", "1"), "the record of the newer run"
    assert (counted(text, "decided"), counted(text, "of them met")) == ("1%", "0%")
    path = runs / "2026-01-02" / "report.html"
    assert text.splitlines()[-1] == f"report: {path}"
    assert path.exists()
    assert path.with_suffix(".csv").exists()
    assert not (runs / "2026-01-01" / "report.html").exists()


def test_one_run_is_reported_alone(runs: Path) -> None:
    text = printed(str(runs / "2026-01-01"))
    assert (counted(text, "pass"), counted(text, "miss")) == ("1", "0")
    assert text.splitlines()[-1] == f"report: {runs / '2026-01-01' / 'report.html'}"


def test_it_opens_only_when_asked(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    printed("--no-open")
    printed()
    assert opened == []
    printed("--open")
    assert opened == [(runs / "2026-01-02" / "report.html").as_uri()]


def test_a_missing_folder_gets_one_sentence(runs: Path) -> None:
    del runs  # it made the working directory
    result = pipekit("nowhere")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: no folder is named nowhere: run an experiment first, see pipekit run\n"
    )
