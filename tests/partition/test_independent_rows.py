"""Networks that mix the rows of a batch are warned of: microbatches would be something else."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pipekit.partition.stages import stages

X = torch.linspace(-1, 1, 4 * 5 * 6).view(4, 5, 6)


class Mixing(nn.Module):
    """Two blocks, and a function of their output."""

    def __init__(self, function: Callable[[Tensor], Tensor], block: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block, nn.Linear(6, 6)])
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.function(x)


class Recurrent(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(6, 6, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.lstm(x)[0]
        return output


def same(x: Tensor) -> Tensor:
    return x


def similarities(x: Tensor) -> Tensor:
    return x[:, 0] @ x[:, 0].T


@pytest.mark.parametrize(
    ("function", "block", "what"),
    [
        (same, Recurrent(batch_first=False), "tensor 0 of the output changes by"),
        (similarities, nn.Linear(6, 6), "tensor 0 of the output has the shape [5, 5] then"),
        (lambda x: x - x.mean(0), nn.Linear(6, 6), "tensor 0 of the output changes by"),
    ],
    ids=["time first", "pairs of rows", "mean over rows"],
)
def test_rows_that_are_mixed(
    function: Callable[[Tensor], Tensor], block: nn.Module, what: str
) -> None:
    expected = re.escape(what) + ".*batch_first=False.*one microbatch a batch"
    with pytest.warns(UserWarning, match=expected):
        stages(Mixing(function, block), X)


@pytest.mark.parametrize(
    ("function", "block"),
    [
        (same, Recurrent(batch_first=True)),
        (same, nn.BatchNorm1d(5)),
        (same, nn.TransformerEncoderLayer(6, 2, batch_first=True)),
        (lambda x: x.square().mean(), nn.Linear(6, 6)),
        (lambda x: x + torch.rand_like(x), nn.Linear(6, 6)),
        (lambda x: x.bfloat16() @ torch.ones(6, 300).bfloat16(), nn.Linear(6, 6)),
    ],
    ids=["time second", "batch norm", "attention", "a loss", "random numbers", "16 bits"],
)
def test_rows_that_are_independent_or_tell_nothing(
    function: Callable[[Tensor], Tensor], block: nn.Module
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stages(Mixing(function, block), X)
