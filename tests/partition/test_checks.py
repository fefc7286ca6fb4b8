"""Balances that fit a model or not."""

from typing import Any

import pytest
from torch import nn

from pipekit.partition.checks import require_balance, require_own_buffers
from tests.engine.examples import mlp


def test_shared_buffers_are_seen() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6))
    model[1].running_mean = model[0].running_mean
    with pytest.raises(ValueError, match="running_mean"):
        require_balance([1, 1], model, 2)


def test_shared_buffers_may_be_in_one_stage() -> None:
    layer = nn.BatchNorm1d(6)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    require_own_buffers(model, [3])
    with pytest.raises(ValueError, match="stages 0 and 1 share the buffer"):
        require_own_buffers(model, [2, 1])


@pytest.mark.parametrize("balance", [[1, 1, 1], (1, 1, 1), "auto"], ids=str)
def test_a_fitting_balance(balance: Any) -> None:
    require_balance(balance, mlp(6, 6, 6, 3), 3)
