"""Findings made in several rounds, and a printed number."""

import pytest

from experiments.recorded.findings import Finding, merged, printed_number
from experiments.study.tables import printed

NEAR_LINEAR, SPEEDUP = "gpipe-sec42-near-linear", "gpipe-abstract-3-5x-speedup"


class TestMerged:
    def test_numbers_are_medians_and_the_nearest_round_speaks(self) -> None:
        rounds = [[Finding.emulated("a", value, str(value))] for value in (3.0, 1.0, 2.0)]
        (found,) = merged(rounds)
        assert (found.value, found.note, found.repeats) == (2.0, "2.0", (3.0, 1.0, 2.0))

    def test_of_a_list_each_number_is_a_median(self) -> None:
        (found,) = merged([[Finding.measured("a", v)] for v in ([1, 9.0], [2, 7.0], [3, 8.0])])
        assert found.value == [2, 8.0]

    def test_of_truth_values_and_texts_most_rounds_count(self) -> None:
        (found,) = merged([[Finding.exact("a", v)] for v in (True, False, False)])
        assert found.value is False
        (text,) = merged([[Finding.exact("a", v)] for v in ("7-1", "8", "8")])
        assert text.value == "8"

    def test_what_never_differs_stays_what_it_is(self) -> None:
        (found,) = merged([[Finding.exact("a", 4)]] * 2)
        assert found.value == 4
        assert isinstance(found.value, int)

    def test_a_single_round_has_no_repeats(self) -> None:
        assert merged([[Finding.exact("a", 4)]])[0].repeats == ()

    @pytest.mark.parametrize("other", [Finding.exact("b", 1), Finding.measured("a", 1)])
    def test_rounds_of_other_claims_or_labels_are_refused(self, other: Finding) -> None:
        with pytest.raises(ValueError, match="differ in what they found of a"):
            merged([[Finding.exact("a", 1)], [other]])

    def test_each_claim_stands_beside_its_own_simulation(self) -> None:
        rounds = [[Finding.emulated(NEAR_LINEAR, 0.72), Finding.exact(SPEEDUP, 4)]] * 2
        beside = [Finding.simulated(NEAR_LINEAR, 0.9, "", "a.svg"), Finding.exact(SPEEDUP, 4)]
        near, speedup = merged(rounds, beside)
        assert (near.value, near.label, near.figure) == (0.9, "simulated", "a.svg")
        assert (speedup.claim, speedup.value, speedup.label) == (SPEEDUP, 4, "exact")

    def test_another_claim_s_simulation_is_refused(self) -> None:
        other = Finding.simulated(SPEEDUP, 3.0)
        with pytest.raises(ValueError, match="stands beside the simulation of gpipe-abstract"):
            merged([[Finding.emulated(NEAR_LINEAR, 0.8)]], [other])


def test_a_printed_number_is_the_ledgers_if_it_has_one() -> None:
    assert printed_number("gpipe-intro-36x-params") == float(printed("gpipe-intro-36x-params"))
    assert printed_number("no such claim") is None
