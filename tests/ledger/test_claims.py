"""The ledger, what notebooks write into their folders, and how it is judged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given

from pipekit.ledger import claims
from pipekit.ledger.criteria import parse
from pipekit.ledger.ledger import load
from pipekit.ledger.outcomes import Cause, Outcome, Status, weaker
from pipekit.ledger.report import write
from pipekit.ledger.report.tables import scores
from tests.hostile import damaged_json, damaged_text, read_or_refuse

SPEEDUP = "pipedream-table1-vgg16-8A-pp-speedup"  # 7.04 x, within 15%, wanted emulated
LEDGER = Path(__file__).parents[2] / "data" / "claims.csv"


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "claims.jsonl").read_text().splitlines()]


def status(folder: Path, id: str) -> str:
    return next(o.status.value for o in claims.outcomes(folder) if o.claim.id == id)


class TestLedger:
    def test_what_is_out_of_reach_has_no_criterion(self) -> None:
        assert {c.check for c in load().values() if c.out_of_reach} == {"report"}

    def test_every_row_is_whole(self) -> None:
        for claim in load().values():
            assert claim.claim, claim.id
            assert claim.tolerance, f"{claim.id}: the prose is the authority"
            bounds = [bound for term in parse(claim.check) for bound in term.bounds]
            sizes = {len(bound) for bound in bounds if isinstance(bound, tuple)}
            if isinstance(claim.target, list):
                assert sizes <= {len(claim.target)}, claim.id
            if sizes or isinstance(claim.target, list):
                assert claim.record, f"{claim.id}: a list needs to be told what stands where"

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            (",within 15%,,", ",around 15%,,", "claims.csv, .*: 'around 15%' in the criterion"),
            (",within 15%,,", ',within 15%,"[1",', "claims.csv, pipedream-.*"),
            (SPEEDUP, "pipedream-table1-vgg16-8A-config", "stands twice"),
        ],
    )
    def test_a_broken_row_is_named(self, old: str, new: str, says: str, tmp_path: Path) -> None:
        broken = tmp_path / "claims.csv"
        broken.write_text(LEDGER.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
        with pytest.raises(ValueError, match=says):
            load(broken)


class TestRecord:
    def test_it_returns_an_outcome_that_says_itself(self, tmp_path: Path) -> None:
        outcome = claims.record(SPEEDUP, 7.0, "emulated", results_dir=tmp_path)
        assert repr(outcome) == (
            f"pass: {SPEEDUP}: paper 7.04 x; ours 7 x (emulated); ratio 0.994; "
            "criterion: within 15%"
        )

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            (np.float64(7.5), 7.5),
            (np.int64(4), 4),
            (np.bool_(True), True),
            (np.array([1, 2]), [1, 2]),
            (torch.tensor(2.5), 2.5),
            ((1, (2, "x")), [1, [2, "x"]]),
            ([np.float32(0.5), True], [0.5, True]),
        ],
    )
    def test_scalars_and_arrays_become_json(self, given: Any, kept: Any, tmp_path: Path) -> None:
        claims.record(SPEEDUP, given, "emulated", results_dir=tmp_path)
        assert written(tmp_path)[0]["value"] == kept

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"id": SPEEDUP + "s"}, f"did you mean '{SPEEDUP}'"),
            ({"id": "?"}, "see the column id of data/claims.csv"),
            ({"label": "guessed"}, "must be one of measured, emulated, simulated, exact"),
            ({"label": "paper"}, "a record is our own value"),
            ({"value": float("nan")}, "record a finite number"),
            ({"value": [1.0, np.inf]}, "record a finite number"),
            ({"value": None}, "not a NoneType"),
            ({"value": {"a": 1}}, "not a dict"),
            ({"figure": "bars.svg"}, "save it before recording"),
            ({"figure": "../bars.svg"}, "must be the name of an .svg or .png file"),
            ({"figure": "bars.html"}, "must be the name of an .svg or .png file"),
            ({"repeats": [7.0, [7.0]]}, "must be of the same shape as its value"),
            ({"repeats": [7.0, float("inf")]}, "record a finite number"),
            ({"started": object()}, "Unable to serialize"),
        ],
    )
    def test_nonsense_is_refused_and_nothing_written(
        self, change: dict[str, Any], says: str, tmp_path: Path
    ) -> None:
        call: dict[str, Any] = {"id": SPEEDUP, "value": 7.0, "label": "emulated"} | change
        with pytest.raises(ValueError, match=r".") as refusal:
            claims.record(**call, results_dir=tmp_path)
        assert says in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert not (tmp_path / "claims.jsonl").exists()


class TestOutcomes:
    def test_without_a_record_nothing_was_run(self, tmp_path: Path) -> None:
        assert {o.status for o in claims.outcomes(tmp_path)} == {
            Status.NOT_RUN,
            Status.PRESET,
            Status.OUT_OF_REACH,
        }
        assert [o.claim.id for o in claims.outcomes(tmp_path)] == list(load())

    def test_the_newest_record_counts_wherever_it_lies(self, tmp_path: Path) -> None:
        claims.record(SPEEDUP, 2.0, "emulated", results_dir=tmp_path / "b")
        claims.record(SPEEDUP, 7.0, "emulated", results_dir=tmp_path / "b")
        assert status(tmp_path, SPEEDUP) == "pass", "the later of two lines"
        old = (tmp_path / "b" / "claims.jsonl").read_text().splitlines()[0]
        entry = json.loads(old)
        entry["provenance"]["utc"] = "2999-01-01T00:00:00+00:00"
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "claims.jsonl").write_text(json.dumps(entry) + "\n")
        assert status(tmp_path, SPEEDUP) == "miss", "the later time, in an earlier folder"

    @pytest.mark.parametrize(
        ("id", "value", "label", "kept", "status", "why"),
        [
            ("2bw-profiling-cost", 356.0, "exact", {}, Status.REPORTED, "no criterion"),
            # A stand-in shows, and the ledger says why the claim stays out of reach.
            ("pipedream-sec53-tf-mp", 5.0, "measured", {}, Status.OUT_OF_REACH, "n/a (other fram"),
            ("pipedream-batch-sizes", [32, 32, 80], "exact", {}, Status.PRESET, "set-up"),
            (SPEEDUP, 7.0, "emulated", {"invalid": "9 % off"}, Status.INVALID, "9 % off"),
            (SPEEDUP, 7.0, "emulated", {"shown_only": "fitted"}, Status.REPORTED, "fitted"),
            (SPEEDUP, 2.0, "emulated", {}, Status.MISS, "2 is not within 15 % of 7.04"),
            ("pipedream-eq-staleness-text-vs-equation", True, "exact", {}, Status.REFUTED, ""),
            ("pipedream-eq-staleness-text-vs-equation", False, "exact", {}, Status.MISS, "it does"),
        ],
    )
    def test_what_does_not_pass_says_why(
        self,
        id: str,
        value: Any,
        label: str,
        kept: dict[str, str],
        status: Status,
        why: str,
        tmp_path: Path,
    ) -> None:
        outcome = claims.record(id, value, label, results_dir=tmp_path, **kept)  # type: ignore[arg-type]
        assert (outcome.status, outcome.why[: len(why)]) == (status, why)
        assert why in repr(outcome)
        assert outcome in claims.outcomes(tmp_path)

    def test_a_criterion_within_the_spread_decides_nothing(self, tmp_path: Path) -> None:
        wide, narrow = [6.8, 7.0, 7.9, 6.3], [6.9, 7.0, 7.1, 7.0]  # 5.984 to 8.096 pass
        how: dict[str, Any] = {"results_dir": tmp_path}
        outcome = claims.record(SPEEDUP, 7.0, "emulated", repeats=wide, **how)
        assert outcome.status is Status.UNDECIDED
        assert outcome.why == "the criterion lies within the spread of 4 repeats"
        assert outcome.ours == "7 ± 1.5"
        assert claims.record(SPEEDUP, 7.0, "emulated", repeats=narrow, **how).status is Status.PASS
        missed = claims.record(SPEEDUP, 2.0, "emulated", repeats=[1.9, 2.1, 2.0], **how)
        assert missed.status is Status.MISS

    def test_a_cause_is_one_whose_change_meets_the_criterion(self, tmp_path: Path) -> None:
        tried = [Cause("free links", 2.5, "simulated"), Cause("faster GPUs", 7.1, "simulated")]
        how: dict[str, Any] = {"results_dir": tmp_path}
        missed = claims.record(SPEEDUP, 2.0, "emulated", causes=tried, **how)
        assert (missed.status, missed.cause) == (Status.MISS, "faster GPUs")
        assert repr(missed).endswith("cause: faster GPUs")
        assert claims.record(SPEEDUP, 2.0, "emulated", causes=tried[:1], **how).cause == "unknown"
        assert claims.record(SPEEDUP, 2.0, "emulated", **how).cause == "unknown"
        assert claims.record(SPEEDUP, 7.0, "emulated", causes=tried, **how).cause == ""
        turned = claims.Cause("faster GPUs", np.float64(7.1), "simulated")
        read_back = claims.record(SPEEDUP, 2.0, "emulated", causes=[turned], **how)
        assert read_back in claims.outcomes(tmp_path)

    @pytest.mark.parametrize(
        ("id", "ours", "changed", "is_cause"),
        [
            (SPEEDUP, 2.0, 3.99, False),  # 5.984 and more meet it
            (SPEEDUP, 2.0, 4.0, True),
            (SPEEDUP, 2.0, 10.9, True),  # gone too far, but 8 and less meet it
            (SPEEDUP, 2.0, 11.2, False),
            (SPEEDUP, 10.2, 9.1, True),
            (SPEEDUP, 2.0, 1.0, False),
            ("pipedream-sec52-both-scale-worse-on-b", [1.2, 1.1], [1.0, 0.9], False),  # increasing
            ("pipedream-sec52-both-scale-worse-on-b", [0.9, 1.2], [0.9, 1.09], True),  # below 1
            ("pipedream-sec52-planner-picks-dp", "7-1", "6-2", False),  # "8"
        ],
    )
    def test_a_change_that_moves_it_half_of_the_way_is_a_cause(
        self, tmp_path: Path, id: str, ours: Any, changed: Any, is_cause: bool
    ) -> None:
        tried = [Cause("half", changed, "simulated")]
        missed = claims.record(id, ours, "simulated", results_dir=tmp_path, causes=tried)
        assert missed.cause == ("half" if is_cause else "unknown")

    def test_two_numbers_of_a_paper_are_a_cause_if_no_change_helps(self, tmp_path: Path) -> None:
        how: dict[str, Any] = {"results_dir": tmp_path, "contradiction": "7 (1), 12 (Table 1)"}
        missed = claims.record(SPEEDUP, 2.0, "emulated", **how)
        assert missed.cause == "the paper contradicts itself"
        turned = [Cause("faster GPUs", 7.1, "simulated")]
        assert claims.record(SPEEDUP, 2.0, "emulated", causes=turned, **how).cause == "faster GPUs"
        assert claims.record(SPEEDUP, 7.0, "emulated", **how).cause == ""

    @pytest.mark.parametrize(
        ("line", "says"),
        [("{", "line 1 is not a record, delete it"), ('{"id": "x"}', "line 1 is not a record")],
    )
    def test_a_broken_line_is_named(self, line: str, says: str, tmp_path: Path) -> None:
        (tmp_path / "claims.jsonl").write_text(line + "\n")
        with pytest.raises(ValueError, match=says):
            claims.outcomes(tmp_path)

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no folder is named"):
            claims.outcomes(tmp_path / "nowhere")


class TestLabels:
    @pytest.mark.parametrize(
        ("label", "wanted", "is_weaker"),
        [
            ("measured", "simulated", False),
            ("emulated", "measured", True),
            ("exact", "measured", True),
            ("measured", "exact", True),
            ("exact", "exact", False),
        ],
    )
    def test_which_is_weaker(self, label: str, wanted: str, is_weaker: bool) -> None:
        assert weaker(label, wanted) is is_weaker

    def test_a_weaker_label_is_judged_and_said(self, tmp_path: Path) -> None:
        outcome: Outcome = claims.record(SPEEDUP, 7.0, "simulated", results_dir=tmp_path)
        assert outcome.status is Status.PASS
        assert outcome.label_note == "wanted emulated, ours simulated"
        assert claims.record(SPEEDUP, 7.0, "emulated", results_dir=tmp_path).label_note == ""


class TestScores:
    def test_claims_are_counted_by_status_and_how_they_were_decided(self, tmp_path: Path) -> None:
        claims.record(SPEEDUP, 7.0, "emulated", results_dir=tmp_path)
        claims.record("pipedream-eq-noam", False, "exact", results_dir=tmp_path)
        claims.record("pipedream-vsync-more-state", [4, 1], "measured", results_dir=tmp_path)
        found = scores(claims.outcomes(tmp_path)).set_index("paper")
        asked = ["claims", "pass", "miss", "weakly decided"]
        assert found.loc["pipedream", asked].tolist() == [164, 2, 1, 1]
        assert found.loc["all", asked].tolist() == [len(load()), 2, 1, 1]
        assert list(found.index) == [*dict.fromkeys(c.paper for c in load().values()), "all"]


RECORD = {
    "id": SPEEDUP,
    "value": [7.0, {"a": 1}],
    "repeats": [[7.0, 1.0], [6.0, 2.0]],
    "invalid": "",
    "causes": [{"name": "free links", "value": [7.0, 2.0], "label": "simulated"}],
    "note": "a note",
    "figure": "bars.svg",
    "provenance": {"label": "emulated", "utc": "2026-01-01T00:00:00+00:00", "cpu": "one"},
}


@given(content=damaged_json(RECORD))
@example(content=json.dumps({**RECORD, "provenance": {"label": []}}).encode())
def test_whatever_stands_in_a_line_it_is_a_record_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "records"
    folder.mkdir(exist_ok=True)

    def read(path: Path) -> None:
        write(claims.outcomes(folder), folder)

    read_or_refuse(read, content, folder / "claims.jsonl")


def test_a_note_may_hold_any_character(tmp_path: Path) -> None:
    note = "one\u2028two\x85three\nfour"
    claims.record(SPEEDUP, 7.0, "emulated", results_dir=tmp_path, note=note)
    (found,) = (each.record for each in claims.outcomes(tmp_path) if each.record)
    assert found.note == note


HEAD, FIRST = LEDGER.read_text().splitlines()[:2]


@given(content=damaged_text(f"{HEAD}\n{FIRST}\n"))
def test_whatever_stands_in_a_ledger_it_is_one_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "ledger.csv"
    read_or_refuse(load.__wrapped__, content, path)
