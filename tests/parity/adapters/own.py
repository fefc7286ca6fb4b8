"""pipekit's own engine by any method, and its ``PipelinedModule`` in a loop of the user's."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

import pipekit as pk
from pipekit.names import METHODS


class Engine:
    """Trains anew on all batches so far, since a stale method reads weights of several batches."""

    method: ClassVar[str] = "gpipe"
    microbatches: ClassVar[int] = 4
    stages: ClassVar[int] = 4
    balance: ClassVar[tuple[int, ...]]
    stale: ClassVar[int] = 0

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        self.model, self.optimizer = model, optimizer
        ends = [round(len(model) * stage / self.stages) for stage in range(self.stages + 1)]
        self.balance = tuple(  # type: ignore[misc]
            b - a for a, b in pairwise(ends)
        )
        self.batches: list[tuple[Tensor, Tensor]] = []

    def step(self, batch: tuple[Tensor, Tensor]) -> float:
        self.batches.append(batch)
        how = METHODS[self.method]
        counts = (self.stages, self.microbatches) if how.microbatches else (self.stages,)
        looped = {"workers": self.stages // 2} if how.takes_workers else {}
        self.pipeline = pk.Pipeline(
            copy.deepcopy(nn.Sequential(OrderedDict(self.model._modules))),
            how.load()(*counts, **looped),
            balance=self.balance,
            seed=0,  # the same masks each time
            optimizer=lambda own: self.optimizer([p for p in own if p.requires_grad]),
            loss=pk.MeanOver(
                lambda output, target: self.model.loss(output, target) * self.model.count(target),
                count=self.model.count,
            ),
        )
        return float(self.pipeline.train(self.batches).losses[-1])

    def parameters(self) -> dict[str, Tensor]:
        return self.pipeline.state_dict()


STALE = {"pipedream": 3, "pipedream-vertical-sync": 3, "pipedream-no-stashing": 3} | {
    "2bw": 1,
    "paci": 1,
}
"""The most updates that the gradients of a method are behind, on four stages."""


def engine_adapter(method: str) -> type[Engine]:
    """Return the adapter of a method, on four stages."""
    microbatches = 8 if METHODS[method].microbatches else 1
    own = {"method": method, "microbatches": microbatches, "stale": STALE.get(method, 0)}
    return type("Engine", (Engine,), own)


class Module:
    """``PipelinedModule`` in the plain loop."""

    microbatches = 4

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        self.loss = model.loss
        self.model = pk.PipelinedModule(
            nn.Sequential(OrderedDict(model._modules)),
            [len(model) // 2, len(model) - len(model) // 2],
            chunks=4,
        )
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])

    def step(self, batch: tuple[Tensor, Tensor]) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())
