"""What a notebook shows, saves and records."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch

import pipekit as pk
from experiments.recorded.findings import Finding, printed, printed_number
from experiments.recorded.notebook import Notebook, open_notebook, parameters
from pipekit import plots, schedules
from pipekit.traces import Trace

CLAIM = "pipedream-startup-admits-noam"


@pytest.fixture
def nb(tmp_path: Path) -> Notebook:
    return open_notebook(tmp_path / "new", "quick", name="mine", label="exact", seed=3, rows=2)


def test_opening_writes_where_the_numbers_come_from(nb: Notebook) -> None:
    origin = json.loads((nb.folder / "provenance.json").read_text())
    wanted = ("label", "seed", "notebook", "scale", "parameters")
    assert [origin[key] for key in wanted] == ["exact", 3, "mine", "quick", {"rows": 2}]


def test_threads_are_set_for_the_workers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        open_notebook(tmp_path, "quick", name="mine", label="exact")
        assert torch.get_num_threads() == before
        assert "OMP_NUM_THREADS" not in os.environ
        open_notebook(tmp_path, "quick", name="mine", label="exact", threads=1)
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (1, "1")
    finally:
        torch.set_num_threads(before)


def test_a_figure_is_saved_and_shown_live_and_as_a_picture(
    nb: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    monkeypatch.setattr(
        "experiments.recorded.notebook.display", lambda what, raw: shown.append(what)
    )
    numbers = pd.DataFrame({"x": [1, 2], "y": [3, 4], "c": ["a", "a"]})
    figure = plots.curves(numbers, "x", "y", "c", title="t", label="exact")
    assert nb.show(figure, "curve", numbers) == "curve.svg"
    pd.testing.assert_frame_equal(pd.read_csv(nb.folder / "curve.csv"), numbers)
    assert shown[0]["image/svg+xml"] == (nb.folder / "curve.svg").read_text()
    assert len(shown[0]["application/vnd.plotly.v1+json"]["data"]) == 1


def test_traces_are_shown_one_under_another(nb: Notebook) -> None:
    two = [
        Trace.from_schedule(method(2, 2).take(1)) for method in (schedules.gpipe, schedules.flush)
    ]
    assert nb.show_traces("both", *two, titles=["one", "other"]) == "both.svg"
    assert set(pd.read_csv(nb.folder / "both.csv")["name"]) == {"GPipe", "PipeDream-Flush"}
    assert "other" in (nb.folder / "both.svg").read_text()


def test_a_table_is_saved_under_its_name_only(
    nb: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"a": [0.123456], "b": [0.5]}, index=["row"])
    nb.table(frame)
    assert not list(nb.folder.glob("*.csv"))
    nb.table(frame, "t", index=True, precision=1, caption="c", formats={"b": "{:.0%}"})
    assert (nb.folder / "t.csv").read_text() == ",a,b\nrow,0.123456,0.5\n"


def test_values_are_recorded_with_their_origin_and_said(
    nb: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    nb.record(CLAIM, 4, "exact", "why", lr=0.5)
    assert CLAIM in capsys.readouterr().out
    (record,) = [o.record for o in pk.claims.outcomes(nb.folder) if o.record]
    assert (record.value, record.note) == (4, "why")
    assert {"seed": 3, "scale": "quick", "lr": 0.5}.items() <= record.provenance.items()
    assert list(nb.claims().index) == [CLAIM]


def test_findings_share_a_figure_unless_they_have_their_own(nb: Notebook) -> None:
    for name in ("a.svg", "b.svg"):
        (nb.folder / name).write_text("<svg/>")
    other = "gpipe-bubble-values"
    nb.record_all(
        [Finding(CLAIM, 4, "exact"), Finding(other, [1.0], "exact", "", "b.svg")], "a.svg"
    )
    figures = {o.claim.id: o.record.figure for o in pk.claims.outcomes(nb.folder) if o.record}
    assert figures == {CLAIM: "a.svg", other: "b.svg"}


def test_the_scoreboard_is_kept_up_to_date_with_the_figure_of_most_claims(
    nb: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, list[dict[str, str]]] = {}

    def note(data: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw
        shown.setdefault(display_id, []).append(data)

    for name in ("display", "update_display"):
        monkeypatch.setattr(f"experiments.recorded.notebook.{name}", note)
    monkeypatch.setattr("experiments.recorded.notebook.get_ipython", object)
    for name in "ab":
        (nb.folder / f"{name}.svg").write_text(f"<svg>{name}</svg>")
    nb.scoreboard()
    nb.record(CLAIM, 4, "exact", figure="a.svg")
    two = ("gpipe-bubble-values", [1.0]), ("gpipe-intro-36x-params", 1.0)
    nb.record_all([Finding(claim, value, "exact") for claim, value in two], "b.svg")
    nb.record(CLAIM, 5, "exact", figure="a.svg")  # of which the figure of most claims is no other
    boards, figures = shown.values()
    assert [board["text/html"].count("<article") for board in boards] == [0, 1, 3, 3]
    a, b = ({"image/svg+xml": f"<svg>{name}</svg>"} for name in "ab")
    assert figures == [{"text/html": ""}, a, b]


def test_a_printed_value_is_the_ledgers() -> None:
    assert printed(CLAIM) == pk.claims.load()[CLAIM].value
    assert printed_number("gpipe-intro-36x-params") == float(printed("gpipe-intro-36x-params"))
    assert printed_number("no such claim") is None
    with pytest.raises(KeyError):
        printed("no such claim")


def test_parameters_are_the_scalars_that_a_notebook_begins_with() -> None:
    given = {"rows": 2, "scale": "quick", "_i1": "rows = 2", "In": ["rows = 2"], "pd": pd}
    assert parameters(given) == {"rows": 2, "scale": "quick"}


CELL = """
scale: str = "quick"  # what the experiment file chose [quick | full]
results_dir: str = "."  # for figures
rows: int = 8  # of a batch [4, 16]
"""


def test_a_parameter_out_of_the_range_in_its_comment_is_refused_at_once() -> None:
    cells = ["", CELL, "rows = 2"]  # papermill's own cell comes after the notebook's
    given = {"scale": "quick", "results_dir": ".", "rows": 8}
    assert parameters({**given, "In": cells}) == given
    with pytest.raises(ValueError, match=r"rows is 2, outside its range: \[4, 16\]"):
        parameters({**given, "rows": 2, "In": cells})
