"""Which repeated values are clear of their criterion, beside draws of whole sets of repeats."""

from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.ledger.spread import decided, half_width

numbers = st.floats(-1e3, 1e3, allow_nan=False)


class TestHalfWidth:
    def test_two_by_hand(self) -> None:
        # Deviation sqrt(2), Student's 97.5 % point with 1 degree of freedom, variance 2/2.
        assert half_width([1.0, 3.0]) == pytest.approx(12.7062 * 2**0.5, rel=1e-4)

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
