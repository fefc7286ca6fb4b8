"""Tensors that layers hand on in Python."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from tests.people.plain import assert_as_plain, batches, multiplied, pipe


class Store:
    """Any object that layers share."""

    x: Tensor | None = None


class Put(nn.Module):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.linear, self.store = nn.Linear(8, 8), store

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.store, dict):
            self.store["x"] = x
        elif isinstance(self.store, list):
            self.store[:] = [x]
        else:
            self.store.x = x
        return multiplied(self.linear(x), x.new_ones(()))


class Get(nn.Module):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.store, dict):
            kept: Tensor = self.store["x"]
        else:
            kept = self.store[0] if isinstance(self.store, list) else self.store.x
        return x + kept


def storing(store: Any) -> nn.Sequential:
    return nn.Sequential(Put(store), nn.Linear(8, 8), Get(store), nn.Linear(8, 3))


STORES = [dict, list, Store]


@pytest.mark.parametrize(
    ("kind", "balance"), [(dict, [1, 3]), (list, [2, 2]), (Store, [1, 3])], ids=str
)
def test_what_layers_of_two_stages_hand_on_in_python_is_refused(
    kind: Callable[[], Any], balance: list[int]
) -> None:
    said = r"layer 2 reads a tensor that layer 0 has left .* stages 1 and 0, .*choose a balance"
    with pytest.raises(ValueError, match=said), warnings.catch_warnings(action="ignore"):
        pipe(storing(kind()), balance=balance).train(batches())
    module = pk.PipelinedModule(storing(kind()), balance, chunks=2)
    with pytest.raises(ValueError, match=said), warnings.catch_warnings(action="ignore"):
        module(batches()[0][0])


def test_a_sparse_tensor_goes_from_layer_to_layer_within_a_stage_alone() -> None:
    class Sparse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to_dense() if x.is_sparse else x.to_sparse()

    model = nn.Sequential(nn.Linear(8, 8), Sparse(), Sparse(), nn.Linear(8, 3))
    assert_as_plain(model, balance=[1, 3])
    with pytest.raises(ValueError, match=r"a sparse or nested one, .* stages 1 and 0"):
        pipe(model, balance=[2, 2]).train(batches())


def test_what_they_hand_on_in_training_only_is_refused_after_an_evaluation() -> None:
    class PutInTraining(Put):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else x

    class GetInTraining(Get):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else x

    store = Store()
    layers = nn.Sequential(PutInTraining(store), GetInTraining(store), nn.Linear(8, 3))
    pipeline = pipe(layers, balance=[1, 2])
    pipeline.evaluate(batches())
    with pytest.raises(ValueError, match="has left in Python"):
        pipeline.train(batches())


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.filterwarnings("ignore:the forward changes")
def test_within_a_stage_it_arrives(kind: Callable[[], Any]) -> None:
    assert_as_plain(storing(kind()), balance=[3, 1])


class Positions(nn.Module):
    """Keeps a table that it makes when it is first used, as rotary embeddings do."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1]) * x.new_full((), 0.1)
        return x + self.table


class Positioned(nn.Module):
    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self.positions, self.linear = positions, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.linear(self.positions(x))
        return moved


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_a_table_that_layers_of_two_stages_share_is_no_such_tensor() -> None:
    positions = Positions()
    assert_as_plain(nn.Sequential(*(Positioned(positions) for _ in range(3))), balance=[1, 2])


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_a_log_that_no_layer_reads_is_none_either() -> None:
    class Logged(nn.Linear):
        log: list[Tensor]

        def forward(self, x: Tensor) -> Tensor:
            self.log.append(x.detach())
            return super().forward(x)

    layers, log = [Logged(8, 8) for _ in range(3)], list[Tensor]()
    for layer in layers:
        layer.log = log
    pipe(nn.Sequential(*layers), balance=[1, 2]).train(batches())


class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.view(-1, 2, 4)


class EditsOne(nn.Module):
    def forward(self, views: tuple[Tensor, Tensor]) -> Tensor:
        views[1].mul_(2.0)
        return views[0] * 1.0


def test_an_edit_through_a_view_stays_within_a_stage() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Views(), EditsOne(), nn.Linear(8, 3))
    assert_as_plain(model, balance=[1, 3])
    with pytest.raises(ValueError, match=r"edits one of several that it gets in one memory.*clone"):
        pipe(model, balance=[2, 2]).train(batches())
