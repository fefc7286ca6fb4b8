import pytest

from pipekit.ledger.batches.ranges import parse, read

CELL = """
epochs: int = 10  # passes over the images (1 to 1000)
share: float = 0.5  # of the time (0.1 to 1)
rates: str = "0.1"  # learning rates (each 0.001 to 1.0)
shown: bool = True  # whether (a figure is shown)
plain = 3
odd: int | None = None  # (1 to 2)
"""


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("1 to 10", [1, 10, 2.5], [0, 11, float("nan"), float("inf")]),
        ("4 to 16, a multiple of 4", [4, 8, 16], [6, 20, 0]),
        ("0.1 to 1", [0.1, 1], [0.09, -1]),
        ('"quick" or "full"', ["quick", "full"], ["", "slow"]),
        ('"a", "b" or "c d"', ["a", "c d"], ["c"]),
        ("each 2 to 8", ["2", "2 8"], ["", " ", "2 9", "2.5", "two"]),
        ("each 0.1 to 1.0", ["0.5 1"], ["0", "nan"]),
        ("1 to 4, then 8 to 16", ["2 8"], ["2", "8 2", "2 8 8", ""]),
        ("listed a network, then 1 to 9", ["vgg16 2, s2vt 1"], ["vgg17 2", "vgg16", ""]),
        ("each a method", ["gpipe 2bw"], ["gpip"]),
        ("a path", ["results", "../x y"], ["", "\0"]),
        ('a path, or ""', ["", "x"], ["\0"]),
        ("each a tc rate", ["100mbit none"], ["100 mbit", "fast"]),
    ],
)
def test_a_range_allows_what_it_says(
    text: str, inside: list[object], outside: list[object]
) -> None:
    found = parse(text)
    assert [value for value in inside if not found.allows(value)] == []
    assert [value for value in outside if found.allows(value)] == []
    assert [value for value in found.outside() if found.allows(value)] == []
    assert found.outside()


@pytest.mark.parametrize("text", ["", "many", "1 to", "a house", "each house", "1 to 2 or more"])
def test_other_words_are_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        parse(text)


def test_a_cell_declares_types_and_ranges() -> None:
    found = read(CELL)
    assert {name: each.type for name, each in found.items()} == {
        "epochs": int,
        "share": float,
        "rates": str,
        "shown": bool,
    }
    assert found["shown"].range is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", 0, "the parameter epochs is 0, outside its range: 1 to 1000"),
        ("epochs", 2.0, "the parameter epochs must be a whole number, not 2.0"),
        ("epochs", True, "the parameter epochs must be a whole number, not True"),
        ("share", "1", "the parameter share must be a number, not '1'"),
        ("rates", "0.1 2", "the parameter rates is '0.1 2', outside its range: each 0.001 to 1.0"),
        ("shown", 1, "the parameter shown must be True or False, not 1"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as refused:
        read(CELL)[name].check(value)
    assert str(refused.value) == message


def test_right_values_are_taken_and_a_whole_number_is_a_number() -> None:
    for name, value in {"epochs": 3, "share": 1, "rates": "0.1 1", "shown": False}.items():
        read(CELL)[name].check(value)
