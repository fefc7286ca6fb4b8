"""``pipekit claim``, as a reviewer types it, and ``pipekit report``."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pipekit.ledger import claims
from pipekit.ledger.outcomes import Cause
from tests.cli.conftest import Printed

MISSED = "2bw-fig7-memory"


@pytest.fixture
def run(elsewhere: Path) -> Path:
    """Return the folder of a run that has recorded two claims, one of which misses."""
    folder = elsewhere / "run"
    too_small = [9.0, 9.2, 9.9, 9.3]
    cause = Cause("logits are kept", [9.0, 9.2, 9.9, 17.5], "simulated")
    how: dict[str, Any] = {"results_dir": folder, "causes": [cause], "note": "why"}
    how |= {"notebook": "pipedream_2bw/memory", "function": "peaks"}
    claims.record(MISSED, too_small, "simulated", **how)
    claims.record("gpipe-sync-semantics", [0.0], "exact", results_dir=folder)
    return folder


def test_it_answers_what_a_reviewer_asks(printed: Printed, run: Path) -> None:
    lines = dict(line.split(":", 1) for line in printed(f"claim {MISSED} --run {run}").splitlines())
    assert {name: text.strip()[:40] for name, text in lines.items()} == {
        "paper": "worst-case memory by system and batch (p",
        "when": "GPT 2.2B, 8 V100 16GB",
        "ours": "9, 9.2, 9.9, 9.3 (simulated; GB at batch",
        "by": "notebooks/pipedream_2bw/memory.ipynb, ce",
        "note": "why",
        "tolerance": "each value above the one before; value 1",
        "outcome": "miss",
        "because": "[9, 9.2, 9.9, 9.3] is not increasing; 9.",
        "from": f"{run} ("[:40],
    }
    does = "(of the paper's claims its change turns 1 and breaks 0)"
    assert lines["because"].endswith(f"cause: logits are kept {does}")


def test_a_value_that_no_function_found_has_its_cell(printed: Printed) -> None:
    said = printed("claim pipedream-vsync-mb5-versions")
    assert re.search(r"by: +notebooks/pipedream/staleness\.ipynb, cell \d+\n", said)


def test_an_unknown_cause_is_told_with_what_was_tried(printed: Printed, tmp_path: Path) -> None:
    tried = [Cause("free links", 2.1, "simulated"), Cause("slow GPUs", 1.0, "simulated")]
    id = "pipedream-table1-vgg16-8A-pp-speedup"  # 7.04, within 15 %
    claims.record(id, 2.0, "simulated", results_dir=tmp_path, causes=tried)
    said = "cause: unknown; tried: free links (2.1), slow GPUs (1)"
    assert said in printed(f"claim {id} --run {tmp_path}")


def test_a_list_has_a_line_for_each_claim(printed: Printed, run: Path) -> None:
    said = printed(f"claim --list --paper pipedream-2bw --outcome miss --run {run}")
    assert said.splitlines() == [f"{MISSED}\tmiss\tlogits are kept"]
    assert len(printed(f"claim --list --run {run}").splitlines()) == len(claims.load())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("2bw-fig7-memry", "did you mean '2bw-fig7-memory'?"),
        ("--list --paper pipedraem", "not 'pipedraem'; did you mean 'pipedream'?"),
        ("", "name one claim, or say --list"),
        (f"{MISSED} --run nowhere", "no folder is named nowhere: run an experiment first"),
        (f"{MISSED} --outcome miss", "name one claim, or say --list"),
        ("vgg16", "pipekit claim --list names all"),
        (f"{MISSED} --again", "--again makes a new run"),
    ],
)
def test_wrong_input(refused: Printed, run: Path, line: str, says: str) -> None:
    assert says in refused(f"claim --run {run} {line}")


def test_to_run_again_needs_a_notebook_and_the_repository(
    refused: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = "torchgpipe-intro-amoebanet-b-acc"
    assert f"no notebook here finds a value of {id}" in refused(f"claim {id} --again")
    monkeypatch.setattr(import_module("pipekit.cli.claim"), "REFERENCE", Path("none"))
    for asked in (MISSED, f"{MISSED} --again"):
        assert "are in the repository, and not in an installed" in refused(f"claim {asked}")


def test_every_committed_record_has_its_notebook_and_function(repository: Path) -> None:
    known: dict[str, str] = {}
    for outcome in claims.outcomes(repository / "results/reference/papers"):
        if outcome.record is None:
            continue
        found = outcome.record.provenance
        if (notebook := found["notebook"]) not in known:
            known[notebook] = (repository / f"notebooks/{notebook}.ipynb").read_text("utf-8")
        assert found.get("function", "") in known[notebook], outcome.claim.id


def test_it_loads_no_notebook_and_nothing_that_takes_longer_than_all_claims() -> None:
    code = (
        "import sys; from pipekit.cli import app\n"
        "app(['claim', '--list'], standalone_mode=False)  # some have repeats, of which a spread\n"
        "slow = {'torch', 'pandas', 'scipy', 'numpy', 'IPython', 'experiments'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


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


def test_a_folder_without_records_gets_one_sentence(refused: Printed, elsewhere: Path) -> None:
    says = "error: no folder is named nowhere: run an experiment first, e.g. pipekit run"
    assert refused("report nowhere").startswith(says)
    says = "error: . has no record of a claim: run a paper first, see pipekit run"
    assert refused("report .") == says
    assert not list(elsewhere.glob("*.html")), "another folder than meant gets no files"
