"""Numbers that know how Python computed them, and expressions in a batch's sizes."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pipekit.partition.recording.templates import Size
from pipekit.partition.recording.traced import plain, traced


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: (n + 1) // 2 * 3 - n % 4,
        lambda n: -(-n // 4),
        lambda n: 1 / n + 2**n - n**0.5,
        lambda n: math.ceil(n / 3) + math.floor(n * 0.4),
        lambda n: 5 - n + (n - 9) * -2,
    ],
)
def test_an_expression_gives_what_python_computes(compute: Callable[[Any], Any]) -> None:
    found = compute(traced(7, "length", lambda comparison: None))
    size = Size(found.expression)
    assert size.names == ("length",)
    assert [size.at({"length": n}) for n in (3, 7, 12)] == [compute(n) for n in (3, 7, 12)]
    assert type(plain(found)) in (int, float)
    assert plain(found) == compute(7)


def test_comparisons_are_reported_as_they_were_true() -> None:
    seen: list[str] = []
    n = traced(7, "length", seen.append)
    assert max(n, 3) is n
    assert not n * 2 < 5
    assert n in (1, 7)
    assert n != 8
    assert bool(n)
    assert n != "7"
    assert seen == [
        "length >= 3", "(length * 2) >= 5", "length != 1", "length == 7",
        "length != 8", "length != 0",
    ]  # fmt: skip


def test_a_copy_is_a_plain_number() -> None:
    n = traced(7, "length", lambda comparison: None)
    assert [type(each) for each in copy.deepcopy([n, n / 2])] == [int, float]
    assert pickle.loads(pickle.dumps((n, n / 2))) == (7, 3.5)


def test_infinity_and_other_things_are_no_expressions() -> None:
    n = traced(7, "length", lambda comparison: None)
    assert type(n + math.inf) is float
    assert n < math.inf
    with pytest.raises(TypeError):
        n + "1"
