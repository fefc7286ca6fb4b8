"""Numbers that depend on a batch's sizes."""

import pytest

from pipekit.partition.recording.templates import Size


@pytest.mark.parametrize(
    ("expression", "names", "number"),
    [
        ("rows", ("rows",), 3),
        ("rows*length + rows", ("rows", "length"), 18),
        ("math.ceil(length/2)", ("length",), 3),
        ("max(1, int(float(length) / 2))", ("length",), 2),
        ("rows == 3", ("rows",), True),
    ],
)
def test_a_size_names_what_it_depends_on(
    expression: str, names: tuple[str, ...], number: int
) -> None:
    size = Size(expression)
    assert size.names == names
    assert size.at({"rows": 3, "length": 5}) == number
