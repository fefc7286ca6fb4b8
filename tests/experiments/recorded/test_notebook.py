"""What a notebook of findings records."""

import json
from pathlib import Path

import pytest

import pipekit as pk
from experiments.recorded.findings import Finding
from experiments.recorded.notebook import Notebook, open_notebook

CLAIM = "pipedream-startup-admits-noam"


@pytest.fixture
def nb(tmp_path: Path) -> Notebook:
    return open_notebook(
        results_dir=tmp_path / "new", scale="quick", name="mine", label="exact", seed=3, rows=2
    )


def test_opening_writes_where_the_numbers_come_from(nb: Notebook) -> None:
    origin = json.loads((nb.folder / "provenance.json").read_text())
    wanted = ("label", "seed", "notebook", "scale", "parameters")
    assert [origin[key] for key in wanted] == ["exact", 3, "mine", "quick", {"rows": 2}]


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
        [Finding.of(CLAIM, 4, "exact"), Finding.of(other, [1.0], "exact", "", "b.svg")], "a.svg"
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
        monkeypatch.setattr(f"experiments.study.notebook.{name}", note)
    monkeypatch.setattr("experiments.study.notebook.get_ipython", object)
    for name in "ab":
        (nb.folder / f"{name}.svg").write_text(f"<svg>{name}</svg>")
    nb.scoreboard()
    nb.record(CLAIM, 4, "exact", figure="a.svg")
    two = ("gpipe-bubble-values", [1.0]), ("gpipe-intro-36x-params", 1.0)
    nb.record_all([Finding.of(claim, value, "exact") for claim, value in two], "b.svg")
    nb.record(CLAIM, 5, "exact", figure="a.svg")  # of which the figure of most claims is no other
    boards, figures = shown.values()
    assert [board["text/html"].count("<article") for board in boards] == [0, 1, 3, 3]
    a, b = ({"image/svg+xml": f"<svg>{name}</svg>"} for name in "ab")
    assert figures == [{"text/html": ""}, a, b]
