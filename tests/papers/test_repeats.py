"""Emulations that count, those that do not, and findings made several times."""

from collections.abc import Callable

import pytest

from pipekit.papers.findings import Finding
from pipekit.papers.repeats import AGAIN, Emulated, emulated, merged, unless_parted


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

    def test_faster_than_simulated_does_not_count_either(self) -> None:
        assert emulated(lambda pace: 0.9, 1.0, repeats=1).label == "simulated"


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


def test_an_emulation_beside_its_simulation_is_invalid() -> None:
    found = Finding.emulated("a", True)
    assert unless_parted(found, 1.04, 1.0) == found
    late = unless_parted(found, 1.2, 1.0)
    assert late.invalid.startswith("the emulation took +20.0% of the simulated time more")
    (kept,) = merged([[late], [found]])
    assert (kept.invalid, kept.repeats) == ("", ())
    assert merged([[late], [late]])[0].invalid


def test_one_emulation_is_no_spread() -> None:
    assert Emulated(1.0, (1.0,)).only(0).counted == (1.0,)


class TestWhereTheCriterionLiesWithinTheSpread:
    """Of "gpipe-sec42-near-linear", which is met by at least 0.75."""

    CLAIM = "gpipe-sec42-near-linear"
    SIMULATED = Finding.simulated(CLAIM, 0.7503, "the simulation's note")

    def of(self, *values: float) -> Finding:
        rounds = [[Finding.emulated(self.CLAIM, value)] for value in values]
        (found,) = merged(rounds, [self.SIMULATED])
        return found

    def test_the_simulation_decides(self) -> None:
        found = self.of(0.749, 0.753, 0.747)
        assert (found.value, found.label, found.repeats) == (0.7503, "simulated", ())
        assert found.note.startswith("the simulation's note; the criterion lies within the spread")
        assert "of 3 emulations, of which the middle is 0.749" in found.note

    def test_else_the_emulations_do(self) -> None:
        found = self.of(0.711, 0.71, 0.712)
        assert (found.value, found.label) == (0.711, "emulated")

    def test_what_is_only_shown_stays(self) -> None:
        rounds = [[Finding.emulated(self.CLAIM, v).only_shown("circular")] for v in (0.74, 0.76)]
        assert merged(rounds, [self.SIMULATED])[0].label == "emulated"

    def test_another_claim_s_simulation_is_refused(self) -> None:
        other = Finding.simulated("gpipe-abstract-3-5x-speedup", 3.0)
        with pytest.raises(ValueError, match="stands beside the simulation of gpipe-abstract"):
            merged([[Finding.emulated(self.CLAIM, 0.8)]], [other])
