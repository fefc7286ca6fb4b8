"""A claim is a function: alone, along axes, in rounds, with one thing changed; and tables over grids."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import pipekit as pk
from experiments import study
from experiments.study.notebook import Notebook, begin, parameters
from experiments.study.tables import largest_that_fits
from pipekit import plots
from pipekit.ledger.outcomes import Outcome

CLAIM = "pipedream-startup-admits-noam"
GIVEN = {"scale": "quick", "rows": 2, "seed": 3}


@pytest.fixture
def nb(tmp_path: Path) -> Notebook:
    return begin(GIVEN | {"results_dir": str(tmp_path / "new")}, "mine", label="exact")


def outcomes(nb: Notebook) -> dict[str, Outcome]:
    return {o.claim.id: o for o in pk.claims.outcomes(nb.folder) if o.record}


def of(nb: Notebook, claim: str) -> Any:
    return outcomes(nb)[claim].record


def test_a_function_is_recorded_with_its_origin_said_and_stays_a_function(
    nb: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    @nb.claim(CLAIM, "exact", "why")
    def admitted() -> study.Found:
        return study.Found(4, note="so it is")

    assert CLAIM in capsys.readouterr().out
    assert admitted().value == 4
    record = of(nb, CLAIM)
    assert (record.value, record.note, record.label) == (4, "why; so it is", "exact")
    assert {"seed": 3, "scale": "quick"}.items() <= record.provenance.items()


def test_along_axes_there_is_a_claim_for_each_value(nb: Notebook) -> None:
    counts = {"pipeline-1": 318, "pipeline-2": 542}

    @nb.claim("gpipe-table1-{column}-params", "exact", column=list(counts))
    def parameters_of(column: str) -> float:
        return counts[column] * 1e6

    assert {id: o.record.value for id, o in outcomes(nb).items() if o.record} == {
        "gpipe-table1-pipeline-1-params": 318e6,
        "gpipe-table1-pipeline-2-params": 542e6,
    }


def test_a_cause_is_the_function_with_one_thing_changed(nb: Notebook) -> None:
    changes = [
        study.changed("gigabytes", "2^30 bytes", gb=2**30),
        study.changed("cut", "half", by=2),
    ]

    @nb.claim("gpipe-table1-{column}-config", "simulated", because=changes, column=["pipeline-2"])
    def gb(column: str, by: float = 1, gb: float = 1e9) -> list[float]:
        return [8.2e9 / by / gb, 9e9 / gb]

    outcome = outcomes(nb)["gpipe-table1-pipeline-2-config"]
    assert outcome.record is not None
    assert [c.value for c in outcome.record.causes] == [[8.2e9 / 2**30, 9e9 / 2**30], [4.1, 9.0]]
    assert outcome.cause == "gigabytes"


def test_over_rounds_the_median_counts_and_a_change_may_be_another_round(nb: Notebook) -> None:
    cut = study.changed("the cut", "by time", 7.0)

    @nb.claim("gpipe-sec41-activation-drop", "measured", over=[1.2, 1.6, 1.3], because=[cut])
    def drop(seconds: float) -> float:
        return seconds

    record = of(nb, "gpipe-sec41-activation-drop")
    assert (record.value, record.repeats) == (1.3, (1.2, 1.6, 1.3))
    assert record.causes[0].value == 7.0


@pytest.mark.parametrize(("label", "changed"), [("exact", "exact"), ("emulated", "simulated")])
def test_of_what_is_counted_a_change_is_counted_too(label: str, changed: str, nb: Notebook) -> None:
    because = [study.changed("gigabytes", "2^30 bytes", gb=2**30)]
    nb.claim("gpipe-sec41-activation-drop", label, because=because)(lambda gb=1e9: 1e9 / gb)
    assert of(nb, "gpipe-sec41-activation-drop").causes[0].label == changed


def test_tests_of_the_toolkit_may_be_the_proof(
    nb: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tmp_path / "test_two.py"
    test.write_text("def test_right(): pass\ndef test_wrong(): assert False\n")
    least, even = "gpipe-partition-min-variance", "2bw-equal-replication"
    nb.proved({least: f"{test}::test_right", even: f"{test}::test_right {test}::test_wrong"}, "hm")
    assert [of(nb, claim).value for claim in (least, even)] == [True, False]
    assert of(nb, least).note == f"hm; proved by {test}::test_right"
    failed = subprocess.CompletedProcess([], 4, stdout="no tests ran\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match=r"cannot be run: no tests ran.*pip install -e"):
        nb.proved({least: f"{test}::no_such_test"})


def test_beginning_writes_where_the_numbers_come_from(nb: Notebook) -> None:
    origin = json.loads((nb.folder / "provenance.json").read_text())
    wanted = ("label", "seed", "notebook", "scale", "parameters")
    assert [origin[key] for key in wanted] == ["exact", 3, "mine", "quick", {"rows": 2}]


def test_a_record_says_which_function_of_which_notebook_found_it(nb: Notebook) -> None:
    nb.claim("gpipe-sec41-activation-drop", "exact", over=[6.0])(float.__abs__)
    found = of(nb, "gpipe-sec41-activation-drop").provenance
    assert (found["notebook"], found["function"]) == ("mine", "float.__abs__")
    nb.record("gpipe-sec41-activation-drop", 6.0, "exact")
    assert "function" not in of(nb, "gpipe-sec41-activation-drop").provenance


def test_threads_are_set_for_workers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # so that it is put back, though nobody has set it
    monkeypatch.delenv("OMP_NUM_THREADS")
    given, before = GIVEN | {"results_dir": str(tmp_path)}, torch.get_num_threads()
    try:
        begin(given, "mine", label="exact")
        assert torch.get_num_threads() == before
        assert "OMP_NUM_THREADS" not in os.environ
        begin(given, "mine", label="exact", threads=1)
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (1, "1")
    finally:
        torch.set_num_threads(before)


def test_a_figure_is_saved_and_shown_live_and_as_a_picture(
    nb: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    monkeypatch.setattr("experiments.study.notebook.display", lambda what, raw: shown.append(what))
    numbers = pd.DataFrame({"x": [1, 2], "y": [3, 4], "c": ["a", "a"]})
    figure = plots.curves(numbers, "x", "y", "c", title="t", label="exact")
    assert nb.show(figure, "curve", numbers) == "curve.svg"
    pd.testing.assert_frame_equal(pd.read_csv(nb.folder / "curve.csv"), numbers)
    assert shown[0]["image/svg+xml"] == (nb.folder / "curve.svg").read_text()
    assert len(shown[0]["application/vnd.plotly.v1+json"]["data"]) == 1


def test_the_scoreboard_is_kept_up_to_date_with_the_figure_of_most_claims(
    nb: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, list[dict[str, str]]] = {}

    def note(data: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw
        shown.setdefault(display_id, []).append(data)

    for name in ("display", "update_display"):
        monkeypatch.setattr(f"experiments.study.notebook.{name}", note)
    monkeypatch.setattr("experiments.study.notebook.get_ipython", object)
    for name in "ab":
        (nb.folder / f"{name}.svg").write_text(f"<svg>{name}</svg>")
    nb = begin(GIVEN | {"results_dir": str(nb.folder)}, "mine", label="exact")
    nb.record(CLAIM, 4, "exact", figure="a.svg")
    nb.record("gpipe-bubble-values", [1.0], "exact", figure="b.svg")
    nb.record("gpipe-intro-36x-params", 1.0, "exact", figure="b.svg")
    nb.record(CLAIM, 5, "exact", figure="a.svg")  # of which the figure of most claims is no other
    boards, figures = shown.values()
    assert [board["text/html"].count("<article") for board in boards] == [0, 1, 2, 3, 3]
    a, b = ({"image/svg+xml": f"<svg>{name}</svg>"} for name in "ab")
    assert figures == [{"text/html": ""}, a, b]


CELL = """
scale: str = "quick"  # what the experiment file chose [quick | full]
results_dir: str = "."  # for figures
rows: int = 8  # of a batch [4, 16]
"""


def test_parameters_are_the_scalars_that_a_notebook_begins_with_each_in_its_range() -> None:
    given: dict[str, Any] = {"scale": "quick", "results_dir": ".", "rows": 8}
    others = {"_i1": "rows = 2", "pd": pd}
    for cells in (["rows = 2"], ["", CELL, "rows = 2"]):  # papermill's cell comes after its own
        assert parameters({**given, **others, "In": cells}) == given
    with pytest.raises(ValueError, match=r"rows is 2, outside its range: \[4, 16\]"):
        parameters({**given, "rows": 2, "In": cells})
    with pytest.raises(ValueError, match="not 'row'; did you mean 'rows'"):
        parameters({**given, "row": 4, "In": ["", CELL, "# Parameters\nrow = 4\n"]})


def test_a_table_has_a_row_for_each_combination() -> None:
    def area(width: int, height: int) -> dict[str, int]:
        return {"area": width * height, "border": 2 * (width + height)}

    frame = study.table(area, width=[1, 2], height=[3, 4])
    assert list(frame) == ["width", "height", "area", "border"]
    assert frame.to_numpy().tolist() == [[1, 3, 3, 8], [1, 4, 4, 10], [2, 3, 6, 10], [2, 4, 8, 12]]

    def doubled(x: int) -> int:
        return 2 * x

    assert study.table(doubled, x=range(3))["doubled"].tolist() == [0, 2, 4]


def test_printed_values_are_the_ledgers() -> None:
    claim = "gpipe-intro-36x-params"
    assert study.printed(claim) == pk.claims.load()[claim].value
    assert study.printed_number(claim) == float(study.printed(claim))
    assert study.printed_number("gpipe-fig3a-amoebanet") == [None, None, None, 3.5]


@pytest.mark.parametrize("limit", [0, 1, 6, 7, 8, 1000])
def test_the_limit_itself_is_found_in_few_trials(limit: int) -> None:
    tried: list[int] = []
    assert largest_that_fits(lambda n: tried.append(n) or n <= limit) == limit  # type: ignore[func-returns-value]
    assert len(tried) <= 22
    assert largest_that_fits(lambda n: n <= limit, most=7) == min(limit, 7)
