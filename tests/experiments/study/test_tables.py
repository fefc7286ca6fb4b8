"""Tables over a grid, numbers beside the printed ones, and the largest number that fits."""

import pytest

import pipekit as pk
from experiments import study
from experiments.study.tables import largest_that_fits


def test_a_table_has_a_row_for_each_combination() -> None:
    def area(width: int, height: int) -> dict[str, int]:
        return {"area": width * height, "border": 2 * (width + height)}

    frame = study.table(area, width=[1, 2], height=[3, 4])
    assert list(frame) == ["width", "height", "area", "border"]
    assert frame.to_numpy().tolist() == [[1, 3, 3, 8], [1, 4, 4, 10], [2, 3, 6, 10], [2, 4, 8, 12]]


def test_a_single_number_has_the_function_s_name() -> None:
    def doubled(x: int) -> int:
        return 2 * x

    assert study.table(doubled, x=range(3))["doubled"].tolist() == [0, 2, 4]


def test_our_numbers_stand_beside_the_printed_ones_in_our_order() -> None:
    paper, ours = {"a": 2.0, "b": 4.0, "c": 8.0}, {"b": 5.0, "a": 1.0}
    frame = study.against(paper, simulated=ours, emulated={"a": 3.0})
    assert list(frame.index) == ["b", "a"]
    assert frame["ratio"].tolist() == [1.25, 0.5]
    assert frame["emulated"].isna().tolist() == [True, False]


def test_printed_values_are_the_ledgers() -> None:
    claim = "gpipe-intro-36x-params"
    assert study.printed(claim) == pk.claims.load()[claim].value
    assert study.printed_number(claim) == float(study.printed(claim))
    assert study.printed_number("gpipe-fig3a-amoebanet") == [None, None, None, 3.5]
    with pytest.raises(KeyError):
        study.printed("no such claim")


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
