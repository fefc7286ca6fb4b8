"""What the user passes in; Pipeline's own refusals are in test_failures."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from pipekit.engine import arguments
from tests.engine.examples import mlp


def test_batches_with_a_length_are_left_unread() -> None:
    class Loud:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("read")

    loud = Loud()
    assert arguments.sized(loud) is loud


def test_a_generator_is_read() -> None:
    assert list(arguments.sized(n for n in range(3))) == [0, 1, 2]


def test_no_batches() -> None:
    nothing: list[Any] = []
    for empty in (nothing, iter(nothing)):
        with pytest.raises(ValueError, match="no batches"):
            arguments.sized(empty)


def test_shared_buffers_are_seen() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6))
    model[1].running_mean = model[0].running_mean
    with pytest.raises(ValueError, match="running_mean"):
        arguments.require_balance([1, 1], model, 2)


def test_shared_buffers_may_be_in_one_stage() -> None:
    layer = nn.BatchNorm1d(6)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    arguments.require_own_buffers(model, [3])
    with pytest.raises(ValueError, match="stages 0 and 1 share the buffer"):
        arguments.require_own_buffers(model, [2, 1])


@pytest.mark.parametrize("balance", [[1, 1, 1], (1, 1, 1), "auto"], ids=str)
def test_a_fitting_balance(balance: Any) -> None:
    arguments.require_balance(balance, mlp(6, 6, 6, 3), 3)
