"""Emulations that count, those that do not, and values found in several rounds."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.study.claims import AGAIN, KNOWN_ERROR, Found, emulated, settled, unless_parted
from pipekit.ledger.claims import load
from pipekit.ledger.outcomes import Record, Status, judge


def taking(*seconds: float) -> Callable[[float], float]:
    """Return what emulates in so many seconds, one after another, at whatever pace."""
    each = iter(seconds)
    return lambda pace: next(each)


class TestEmulated:
    def test_those_within_the_bound_count_and_the_others_are_run_again(self) -> None:
        found = emulated(taking(1.02, 1.3, 1.04, 1.01), 1.0, repeats=3)
        assert found.counted == (1.02, 1.04, 1.01)
        assert found.parted == pytest.approx([0.3])
        assert (found.label, found.seconds, found.note) == ("emulated", 1.02, "")
        assert found.only(1).seconds == 1.04

    def test_where_too_many_part_the_simulation_stands_in(self) -> None:
        slow = [1.2 + 0.1 * number for number in range(AGAIN + 1)]
        found = emulated(taking(1.0, *slow), 1.0, repeats=3)
        assert (found.label, found.seconds, found.counted) == ("simulated", 1.0, ())
        most = 20 + 10 * AGAIN
        assert found.note.startswith(f"all {AGAIN + 1} emulations took +20.0% to +{most}.0%")
        assert found.only(2) == found

    def test_a_machine_s_own_time_counts_less_at_a_slower_pace(self) -> None:
        paces = []

        def run(pace: float) -> float:
            paces.append(pace)
            return 1.0 + 0.075 * pace  # 0.075 s of its own in every run

        found = emulated(run, 1.0, repeats=2)
        assert paces == [1, 0.5, 0.5]
        assert found.seconds == pytest.approx(1.0375)


CLAIM = "gpipe-sec42-near-linear"
"""Met by at least 0.75, and wants an emulation."""


def merged(*values: object, label: str = "emulated", claim: str = CLAIM) -> Found:
    """Return what rounds come to that have nothing beside them."""
    return settled(claim, [Found(value, str(value), label) for value in values], None)


class TestRounds:
    def test_numbers_are_medians_and_the_nearest_round_speaks(self) -> None:
        found = merged(3.0, 1.0, 2.0)
        assert (found.value, found.note, found.repeats) == (2.0, "2.0", (3.0, 1.0, 2.0))

    def test_of_a_list_each_number_is_a_median(self) -> None:
        assert merged([1, 9.0], [2, 7.0], [3, 8.0]).value == [2, 8.0]

    def test_of_truth_values_and_texts_most_rounds_count(self) -> None:
        assert merged(True, False, False).value is False
        assert merged("7-1", "8", "8").value == "8"

    def test_a_single_round_keeps_its_own_repeats(self) -> None:
        alone = Found(2.0, label="measured", repeats=(1.0, 2.0, 3.0))
        assert settled(CLAIM, [alone], None) == alone

    def test_rounds_of_other_labels_are_refused(self) -> None:
        rounds = [Found(1, label="exact"), Found(1, label="measured")]
        with pytest.raises(ValueError, match=f"differ in what they found of {CLAIM}"):
            settled(CLAIM, rounds, None)


def test_an_emulation_beside_its_simulation_is_invalid() -> None:
    found = Found(True, label="emulated")
    assert unless_parted(found, 1.04, 1.0) == found
    late = unless_parted(found, 1.2, 1.0)
    assert late.invalid.startswith("the emulation took +20.0% of the simulated time more")
    kept = settled(CLAIM, [late, found], None)
    assert (kept.invalid, kept.repeats) == ("", ())
    assert settled(CLAIM, [late, late], None).invalid


class TestAnEmulationBesideItsSimulation:
    def of(self, simulated: float, *emulated: float, label: str = "emulated") -> Found:
        rounds = [Found(value, label=label) for value in emulated]
        return settled(CLAIM, rounds, Found(simulated, "the simulation's note", "simulated"))

    @pytest.mark.parametrize("ran", [[0.71, 0.711, 0.712], [0.71, 0.715, 0.72]])
    def test_which_it_confirms_counts(self, ran: list[float]) -> None:
        found = self.of(0.72, *ran)
        assert (found.value, found.label, found.known_error) == (ran[1], "emulated", 0)

    @pytest.mark.parametrize("ran", [[0.74, 0.741, 0.742], [0.78, 0.77, 0.60]])
    def test_which_it_does_not_confirm_gives_way_to_it(self, ran: list[float]) -> None:
        found = self.of(0.77, *ran)
        assert (found.value, found.label, found.repeats) == (0.77, "simulated", ())
        middle = sorted(ran)[1]
        assert found.note == f"the simulation's note; the middle of 3 emulations is {middle}"

    @given(st.floats(0.5, 1.0), st.lists(st.floats(0.5, 1.0), min_size=1, max_size=4))
    def test_no_emulation_ever_turns_an_outcome(self, simulated: float, ran: list[float]) -> None:
        ways = {"emulated": ran, "simulated": [simulated]}  # one host emulates in time, one not
        found = {self.status(self.of(simulated, *ways[label], label=label)) for label in ways}
        assert len(found) == 1

    @pytest.mark.parametrize("simulated", [0.7503, 0.7497, 0.78, 0.722])
    def test_so_near_the_criterion_nothing_is_decided(self, simulated: float) -> None:
        for ran in ([0.8, 0.8, 0.8], [0.7, 0.7, 0.7]):
            found = self.of(simulated, *ran)
            assert (found.value, found.known_error) == (simulated, KNOWN_ERROR)
            assert self.status(found) is Status.UNDECIDED

    def test_some_that_do_not_count_leave_the_simulation_alone(self) -> None:
        found = self.of(0.8, 0.81, 0.83, label="simulated")
        assert (found.value, found.label, found.repeats) == (0.8, "simulated", ())
        assert found.note.endswith("some seconds are simulated, as their emulations do not count")

    def test_a_claim_that_wants_no_more_than_a_simulation_gets_it(self) -> None:
        rounds = [Found(value, label="emulated") for value in (9.0, 9.1)]
        beside = Found(9.2, label="simulated")
        found = settled("pipedream-table1-vgg16-16A-pp-speedup", rounds, beside)
        assert (found.value, found.label, found.known_error) == (9.2, "simulated", 0)

    def status(self, found: Found) -> Status:
        """Return what the ledger says of a value."""
        record = Record(
            id=CLAIM,
            value=found.value,
            repeats=found.repeats,
            known_error=found.known_error,
            provenance={"label": found.label, "utc": "2026-01-31T12:00:00+00:00"},
        )
        return judge(load()[CLAIM], record).status


def test_the_known_error_is_no_smaller_than_the_worst_that_was_measured() -> None:
    path = Path(__file__).parents[3] / "results/reference/prediction_accuracy/summary.csv"
    rows = {row["what"]: row["found"] for row in csv.DictReader(path.open())}
    assert float(rows["emulated seconds, worst error"]) <= KNOWN_ERROR
