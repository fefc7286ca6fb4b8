"""The language of criteria: what passes, what does not, what cannot be read, and what repeats decide."""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipekit.ledger.criteria import evaluate, parse
from pipekit.ledger.ledger import load
from pipekit.ledger.spread import decided, half_width

GOLDEN = pd.read_csv(Path(__file__).parents[2] / "results/reference/papers/claims.csv")
GOLDEN = GOLDEN[GOLDEN["outcome"].isin(["pass", "miss"])]
finite = st.floats(-1e6, 1e6, allow_nan=False)


def passes(check: str, value: Any, target: Any = None) -> bool | None:
    return evaluate(check, value, target).passed


class TestEachForm:
    @pytest.mark.parametrize(
        ("check", "target", "right", "wrong"),
        [
            ("within 15%", 7.04, [5.99, 8.09], [5.97, 8.11, -7.04]),
            ("within 10%", -2, [-2.19, -1.81], [-2.3, -1.7, 2]),
            ("within 7", 95, [88, 102, 95], [87.9, 102.1]),
            ("at least 0.95", None, [0.95, 2], [0.949, -3]),
            ("at most 2", None, [2, -9], [2.001]),
            ("above 0", None, [1e-9], [0, -1]),
            ("below 1", None, [0.999], [1, 3]),
            ("between 0.8 1.2", None, [0.8, 1, 1.2], [0.79, 1.21]),
            ("increasing", None, [[1, 2, 3]], [[1, 1], [2, 1], [1], 1]),
            ("decreasing", None, [[3, 2]], [[2, 2], [1, 2]]),
            ("not decreasing", None, [[1, 1, 2]], [[2, 1], [1]]),
            ("same order", [2.99, 5.12, 1], [[3, 4, 2]], [[4, 3, 2], [3, 3, 2], [3, 4]]),
            ("same order", [3, None, 5], [[3, 9, 4], [3, 1, 4]], [[4, 9, 3]]),
            ("3 values and above 0", None, [[1, 2, 3]], [[1, 2], [1, 2, 0], 3]),
            ("equal", 4, [4, 4.0, 4 + 1e-12], [4.001, "4", True, [4]]),
            ("equal", 1, [1], [True]),
            ("equal", "2-1-1", ["2-1-1"], ["2-1", 2, ["2-1-1"]]),
            ("equal", [4, 3, 2, 1], [[4, 3, 2, 1]], [[4, 3, 2], [1, 2, 3, 4], 4]),
            ("holds", None, [True], [False, "True", 1, 1.0, [True], "yes"]),
            ("within 20% and above 1", 1.1, [1.05, 1.3], [0.95, 1.4]),
            ("within [7, 0]", [95, 0], [[90, 0], [102, 0]], [[80, 0], [95, 1], 95, [95]]),
            ("within 15%", [0.8, None, 3], [[0.8, 99, 3.1]], [[0.8, 99, 9], [0.8, 3]]),
            ("between [0, null] [1e-6, null]", None, [[1e-7, 50]], [[1e-5, 50], [1e-7], 0]),
        ],
    )
    def test_passes_what_it_says_and_nothing_else(
        self, check: str, target: Any, right: list[Any], wrong: list[Any]
    ) -> None:
        assert [value for value in right if passes(check, value, target) is not True] == []
        assert [value for value in wrong if passes(check, value, target) is not False] == []

    def test_report_cannot_pass_or_fail(self) -> None:
        assert passes("report", "text") is passes("report", False) is None

    @pytest.mark.parametrize("check", ["within 5", "above 0", "increasing", "2 values"])
    @pytest.mark.parametrize(
        "value", ["7", True, [], [1, "2"], [1, True], float("nan"), [1, float("inf")]]
    )
    def test_what_is_no_number_meets_no_numeric_criterion(self, check: str, value: Any) -> None:
        verdict = evaluate(check, value, 7)
        assert verdict.passed is False
        assert "is not a number" in verdict.why

    @pytest.mark.parametrize(
        ("check", "value", "target", "why"),
        [
            ("within 15%", 9.0, 7.04, "9 is not within 15 % of 7.04"),
            ("between 0 [1, null]", [2, 0], None, "2 is not between 0 and 1"),
            ("between 0 [null, 1]", [-1, 0], None, "-1 is not at least 0"),
            ("between [null, 0] 1", [2, 0], None, "2 is not at most 1"),
            ("above 0 and below 1", -1, None, "-1 is not above 0"),
            ("increasing", [1, 0.5], None, "[1, 0.5] is not increasing"),
            ("6 values and decreasing", [2, 1], None, "2 numbers where 6 values are asked for"),
            ("equal", "8", "7-1", '"8" is not "7-1"'),
            ("holds", False, None, "it does not hold"),
            ("holds", "True", None, '"True" is not a truth value'),
        ],
    )
    def test_a_miss_says_why(self, check: str, value: Any, target: Any, why: str) -> None:
        assert evaluate(check, value, target).why == why


class TestWrongCriteria:
    @pytest.mark.parametrize(
        ("check", "says"),
        [
            ("about 3", "must be one of: within N"),
            ("at least 3%", "must be one of"),
            ("within x%", "'x' in the criterion 'within x%' must be a number"),
            ("above NaN", "must be a number"),
            ("above [1, true]", "must be a number or a list of them"),
            ("holds and above 0", "'holds' must stand alone"),
        ],
    )
    def test_are_refused(self, check: str, says: str) -> None:
        with pytest.raises(ValueError, match=r".") as refusal:
            parse(check)
        assert says in str(refusal.value)

    @pytest.mark.parametrize("check", ["within 5%", "equal", "same order"])
    def test_a_comparison_needs_a_target(self, check: str) -> None:
        with pytest.raises(ValueError, match="needs a target"):
            evaluate(check, 1)


class TestLedger:
    def test_golden_values_are_judged_as_they_were(self) -> None:
        for row in GOLDEN.itertuples():
            claim = load()[row.id]
            passed = passes(claim.check, json.loads(row.value), claim.target)
            assert passed == (row.outcome == "pass"), row.id

    def test_text_in_a_number_s_place_fails(self) -> None:
        judged = [claim for claim in load().values() if claim.check != "report"]
        found = [c.id for c in judged if passes(c.check, "True", c.target) is not False]
        assert found == []


numbers = st.floats(-1e3, 1e3, allow_nan=False)


class TestHalfWidth:
    def test_it_is_students_point_times_the_deviation_of_a_difference(self) -> None:
        for n in (2, 3, 4, 5, 12, 41, 200):
            repeats = [1.0, *[3.0] * (n - 1)]
            expected = stats.t.ppf(0.975, n - 1) * stdev(repeats) * (2 / n) ** 0.5
            assert half_width(repeats) == pytest.approx(expected, rel=1e-12)

    def test_what_was_not_repeated_or_never_differs_has_none(self) -> None:
        assert half_width([]) == half_width([7.0]) == half_width([7.0, 7.0, 7.0]) == 0


class TestDecided:
    @pytest.mark.parametrize(
        ("check", "value", "repeats", "target", "clear"),
        [
            ("at least 2", 3.0, [2.9, 3.0, 3.1], None, True),
            ("at least 2", 2.1, [1.9, 2.1, 2.3], None, False),
            ("at least 2", 1.9, [1.7, 1.9, 2.1], None, False),
            ("at least 2", 1.0, [0.9, 1.0, 1.1], None, True),
            ("within 10%", 5.4, [5.2, 5.4, 5.6], 5.0, False),
            ("increasing", [1.0, 2.0], [[0.9, 1.9], [1.1, 2.1], [1.0, 2.0]], None, True),
            ("increasing", [1.0, 1.2], [[0.9, 1.4], [1.1, 1.0], [1.0, 1.2]], None, False),
            ("at most [0, null] and above [null, 2]", [0, 3.0], [[0, 2.9], [0, 3.1]], None, False),
            ("at most [0, null] and above [null, 2]", [0, 3.0], [[0, 3.0], [0, 3.0]], None, True),
            ("within 0.01", 1.3, [1.1, 1.5], 1.0, False),
            ("between [2, null] [2.1, null]", [1.5, 0], [[1.1, 0], [1.9, 0]], None, False),
            ("holds", True, [True, True], None, True),
            ("holds", True, [True, False], None, False),
            ("equal", "7-1", ["7-1", "8"], "7-1", False),
            ("at least 2", 2.0, [], None, True),
            ("at least 2", 2.0, [1.0], None, True),
        ],
    )
    def test_by_hand(
        self, check: str, value: Any, repeats: list[Any], target: Any, clear: bool
    ) -> None:
        assert decided(check, value, repeats, target) is clear

    @pytest.mark.parametrize(
        ("check", "value", "error", "clear"),
        [
            ("at least 2", 2.03, 0.01, True),
            ("at least 2", 2.01, 0.01, False),
            ("at least 2", 1.99, 0.01, False),
            ("within [1e-6, 1]", [100.0, 3.5], (0.0, 0.1), True),
            ("within [1e-6, 1]", [100.0, 3.5], (0.1, 0.1), False),
            ("within [1e-6, 1]", [100.0, 3.5], (0.0, 0.2), False),
            ("holds", True, 0.5, True),
        ],
    )
    def test_a_known_error_is_a_spread_without_repeats(
        self, check: str, value: Any, error: Any, clear: bool
    ) -> None:
        assert decided(check, value, [], [100.0, 3.0], error) is clear

    @given(st.lists(numbers, min_size=2, max_size=6), numbers)
    def test_a_bound_is_clear_if_and_only_if_it_is_outside_the_spread(
        self, repeats: list[float], bound: float
    ) -> None:
        value, half = mean(repeats), half_width(repeats)
        outside = bound <= value - half or bound > value + half
        assert decided(f"at least {bound!r}", value, repeats) is outside

    @given(st.lists(numbers, min_size=2, max_size=4), numbers, numbers)
    def test_two_bounds_are_clear_if_they_hold_all_of_the_spread_or_none(
        self, repeats: list[float], low: float, high: float
    ) -> None:
        check, value, half = f"between {low!r} {high!r}", mean(repeats), half_width(repeats)
        overlaps = max(low, value - half) <= min(high, value + half)
        inside = low <= value - half and value + half <= high
        assert decided(check, value, repeats) is (inside or not overlaps)
