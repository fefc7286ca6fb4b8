import pytest

from pipekit.ledger.batches.ranges import read

CELL = """
epochs: int = 10  # passes over the images [1, 1000]
share: float = 0.5  # of the time [0.1, 1]
rates: str = "0.1"  # learning rates [0.001, 1.0]
counts: str = "2"  # of workers [2, 8]
scale: str = "quick"  # how much [quick | full]
hidden: int = 32  # size [16 | 32]
shown: bool = True  # whether [a figure is shown]
words: str = ""  # neither [1, many] nor [1]
plain = 3
odd: int | None = None  # [1, 2]
"""


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("epochs", [1, 1000], [0, 1001]),
        ("share", [0.1, 1, 1.0], [0.09, -1.0, float("nan"), float("inf")]),
        ("rates", ["0.1 1", "0.001"], ["", " ", "0", "0.1 2", "nan", "two"]),
        ("counts", ["2", "2 8"], ["2 9", "2.5"]),
        ("scale", ["quick", "full"], ["", "slow", "quick slow"]),
        ("hidden", [16, 32], [24, 0]),
        ("words", ["", "anything"], []),
    ],
)
def test_a_range_is_what_it_says(name: str, inside: list[object], outside: list[object]) -> None:
    parameter = read(CELL)[name]
    for value in inside:
        parameter.check(value)
    for value in outside:
        with pytest.raises(ValueError, match=f"the parameter {name} is .*, outside its range: "):
            parameter.check(value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", 0, "the parameter epochs is 0, outside its range: [1, 1000]"),
        ("epochs", 2.0, "the parameter epochs must be a whole number, not 2.0"),
        ("epochs", True, "the parameter epochs must be a whole number, not True"),
        ("share", "1", "the parameter share must be a number, not '1'"),
        ("rates", "0.1 2", "the parameter rates is '0.1 2', outside its range: [0.001, 1.0]"),
        ("shown", 1, "the parameter shown must be True or False, not 1"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as refused:
        read(CELL)[name].check(value)
    assert str(refused.value) == message
