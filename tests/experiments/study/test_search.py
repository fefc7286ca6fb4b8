"""The largest number that fits."""

import pytest

from experiments.study.search import largest_that_fits


@pytest.mark.parametrize("limit", range(20))
def test_it_is_the_limit_itself_and_at_most_the_largest_that_may_be(limit: int) -> None:
    assert largest_that_fits(lambda n: n <= limit) == limit
    assert largest_that_fits(lambda n: n <= limit, most=7) == min(limit, 7)


def test_few_numbers_are_tried() -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= 1000

    assert largest_that_fits(fits) == 1000
    assert len(tried) <= 22
