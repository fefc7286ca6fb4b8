"""Networks whose forward edits weights: momentum encoders, clipping, embeddings with max_norm."""

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipekit import Pipeline, schedules
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.stage import called
from pipekit.partition.stages import stages
from tests.engine.examples import different, values
from tests.partition.networks import require_as_in_a_plain_loop

X = torch.linspace(-1, 1, 32).view(4, 8)
BATCHES = [(X * k, X.flip(0) * k) for k in (1, 2, 3)]
OPTIMIZER = partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)


def follow_data(mine: Tensor, other: Tensor) -> None:
    mine.data.copy_(mine.data * 0.9 + other.data * 0.1)


def follow_in_place(mine: Tensor, other: Tensor) -> None:
    mine.lerp_(other, 0.1)


def follow_by_view(mine: Tensor, other: Tensor) -> None:
    mine.view(-1).mul_(0.9).add_(other.view(-1), alpha=0.1)


def follow_elsewhere(mine: Tensor, other: Tensor) -> None:
    mine.data = mine.data * 0.9 + other.data * 0.1


class Momentum(nn.Module):
    """Two encoders, the second of which follows the first in each forward (as MoCo's)."""

    def __init__(self, follow: Callable[[Tensor, Tensor], None], factor: float = 0.5) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.follow = follow
        with torch.no_grad():
            for weight in self.key.parameters():
                weight.mul_(factor)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                self.follow(mine, other)
            key = self.key(x)
        y: Tensor = self.query(x) + key
        return y


class Clipped(nn.Module):
    """Clips its weight in each forward."""

    def __init__(self, elsewhere: bool = False) -> None:
        super().__init__()
        self.linear, self.elsewhere = nn.Linear(8, 8), elsewhere

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        if self.elsewhere:
            weight.data = weight.data.clamp(-0.2, 0.2)
        else:
            weight.data.clamp_(-0.2, 0.2)
        y: Tensor = self.linear(x)
        return y


class Words(nn.Module):
    """An embedding that keeps its rows short."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8, max_norm=0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.table((x[:, 0].abs() * 4).long() % 9)
        return y


@pytest.fixture(autouse=True)
def said_elsewhere() -> Iterator[None]:
    """What is warned of is another test's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def made(network: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return network()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "data": (partial(Momentum, follow_data), None),
    "in place": (partial(Momentum, follow_in_place), None),
    "by a view": (partial(Momentum, follow_by_view), None),
    "in a block": (
        lambda: nn.Sequential(nn.Linear(8, 8), Momentum(follow_elsewhere), nn.Linear(8, 8)),
        ["0", "1", "2"],
    ),
    "clipped": (lambda: nn.Sequential(Clipped(), nn.Tanh(), Clipped()), ["0", "1", "2"]),
    "max_norm": (lambda: nn.Sequential(Words(), nn.Linear(8, 8)), ["0", "1"]),
}


@pytest.mark.parametrize(
    ("name", "transport"),
    [*((name, "threads") for name in NETWORKS), ("by a view", "distributed")],
)
def test_it_trains_as_a_plain_loop_does(name: str, transport: str) -> None:
    network, blocks = NETWORKS[name]
    model, judge = made(network), made(network)
    layers = stages(model, X, blocks)
    assert different(dict(model.state_dict()), dict(judge.state_dict())) == []
    flush = schedules.flush(2, 1)
    how: dict[str, Any] = {"optimizer": OPTIMIZER, "transport": transport}
    require_as_in_a_plain_loop(layers, judge, BATCHES, flush, **how)


def test_no_cut_parts_what_is_edited_from_what_edits_it() -> None:
    """The momentum encoder is edited before the first block and read in its own."""
    layers = stages(made(partial(Momentum, follow_in_place)), X)
    assert [called(layer) for layer in layers] == [  # type: ignore[arg-type]
        ("key.0", "key.1", "key.2"), ("query.0",), ("query.1",), ("query.2",),
    ]  # fmt: skip


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_another_tensor_between_blocks_is_refused(factor: float) -> None:
    """Also if it is an equal one as yet, as that of a momentum encoder is in the beginning."""
    with pytest.raises(NotRecordable, match=r"not the unsplit one in training mode"):
        stages(made(partial(Momentum, follow_elsewhere, factor)), X)


def test_another_tensor_for_a_trained_weight_is_refused_and_the_edit_put_back() -> None:
    """The optimizer would go on with the old one."""
    model = nn.Sequential(Clipped(elsewhere=True), nn.Linear(8, 8))
    pipeline = Pipeline(model, schedules.flush(2, 1).take(1), optimizer=OPTIMIZER, loss=F.mse_loss)
    with pytest.raises(ValueError, match=r"layer 0 gives 'linear.weight' another tensor.*copy_"):
        pipeline.train(BATCHES[:1])
    assert different(dict(pipeline.state_dict()), dict(model.state_dict())) == []


@pytest.mark.parametrize("evaluates_first", [False, True])
def test_stages_that_share_what_a_forward_edits_are_refused(evaluates_first: bool) -> None:
    """Each would have a copy, of which the forward edits one."""
    clipped = Clipped()
    model = nn.Sequential(clipped, nn.Tanh(), clipped.linear)
    options: Any = {"optimizer": OPTIMIZER, "loss": F.mse_loss, "balance": [2, 1]}
    pipeline = Pipeline(model, schedules.flush(2, 1).take(3), **values(**options))
    with pytest.raises(ValueError, match=r"stages 0 and 1 share the weight, which a forward edits"):
        pipeline.evaluate(BATCHES) if evaluates_first else pipeline.train(BATCHES)
    judge = copy.deepcopy(model)
    together: dict[str, Any] = {"optimizer": OPTIMIZER, "balance": [3]}
    require_as_in_a_plain_loop(model, judge, BATCHES, schedules.flush(1, 1), **together)


def test_what_a_layer_edits_is_warned_of() -> None:
    model = nn.Sequential(Clipped(), nn.Linear(8, 8))
    pipeline = Pipeline(model, schedules.flush(2, 1).take(1), optimizer=OPTIMIZER, loss=F.mse_loss)
    with pytest.warns(UserWarning, match=r"the forward changes 0\.linear\.weight: in a pipeline"):
        pipeline.train(BATCHES[:1])
