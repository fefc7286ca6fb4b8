"""Networks that mix the rows of a batch are warned of: microbatches are something else."""

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pipekit as pk
from pipekit import schedules

X = torch.linspace(-1, 1, 8 * 5 * 6).view(8, 5, 6)


class Called(nn.Module):
    """Makes a layer of a function, with what the function needs."""

    def __init__(self, function: Callable[..., Tensor], *needed: nn.Module) -> None:
        super().__init__()
        self.function, self.needed = function, nn.ModuleList(needed)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(*self.needed, x)


def first(layer: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = layer(x)[0]
    return output


def to_two_experts(x: Tensor) -> Tensor:
    """Of all rows, no more than half go to an expert."""
    chosen = (x.mean((1, 2)) > 0).nonzero()[: len(x) // 2, 0]
    return x.index_add(0, chosen, x[chosen])


MIXING: dict[str, Callable[[], nn.Module]] = {
    "time first": lambda: Called(first, nn.LSTM(6, 6)),
    "attention, time first": lambda: nn.TransformerEncoderLayer(6, 2, 8),
    "softmax over rows": lambda: nn.Softmax(dim=0),
    "mean over rows": lambda: Called(lambda x: x - x.mean(0)),
    "experts with room for half": lambda: Called(to_two_experts),
    "batch norm without averages": lambda: nn.BatchNorm1d(5, track_running_stats=False),
}
INDEPENDENT: dict[str, Callable[[], nn.Module]] = {
    "time second": lambda: Called(first, nn.LSTM(6, 6, batch_first=True)),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    "batch norm": lambda: nn.BatchNorm1d(5),
    "random numbers": lambda: Called(lambda x: x + torch.rand_like(x)),
    "16 bits": lambda: Called(lambda x: (x.bfloat16() @ torch.ones(6, 6).bfloat16()).float()),
}


def train(layer: nn.Module, recorded: bool, microbatches: int) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(6, 6), layer)
    pk.Pipeline(
        pk.stages(model, X) if recorded else model,  # type: ignore[arg-type]
        schedules.flush(2, microbatches),
        optimizer=partial(torch.optim.SGD, lr=0.0),
        loss=lambda output, target: output.square().mean(),
    ).train(DataLoader(TensorDataset(X, X), 8))


@pytest.mark.parametrize("recorded", [False, True], ids=["layers", "recorded"])
@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_rows_that_are_mixed(make: Callable[[], nn.Module], recorded: bool) -> None:
    torch.manual_seed(0)
    expected = r"tensor 0 of the output changes by.*batch_first=False.*one microbatch a batch"
    with pytest.warns(UserWarning, match=expected):
        train(make(), recorded, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(make(), recorded, 1)


@pytest.mark.parametrize("make", INDEPENDENT.values(), ids=INDEPENDENT)
def test_rows_that_are_independent_or_tell_nothing(make: Callable[[], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(make(), False, 4)


def test_pairs_of_rows_are_of_all_rows() -> None:
    with pytest.warns(UserWarning, match=r"has rows of \[4\] in place of \[2\]"):
        train(Called(lambda x: x[:, 0] @ x[:, 0].T), False, 4)


def test_rows_that_a_pipelined_module_mixes() -> None:
    layers = nn.Sequential(nn.Linear(6, 6), MIXING["mean over rows"]())
    with pytest.warns(UserWarning, match="not independent of one another"):
        pk.PipelinedModule(layers, [1, 1], chunks=2)(X)


def test_embeddings_that_count_their_entries_are_warned_of() -> None:
    model = nn.Sequential(nn.Embedding(9, 6, scale_grad_by_freq=True), nn.Linear(6, 6))
    x = torch.arange(16).view(8, 2)
    pipeline = pk.Pipeline(
        model,
        schedules.flush(2, 2),
        optimizer=torch.optim.SGD,
        loss=lambda output, _: output.mean(),
    )
    with pytest.warns(UserWarning, match="scale_grad_by_freq=True counts.*one microbatch"):
        pipeline.train([(x % 9, x)])
