"""Trainers with the faults that issue 38 lists, and their like: the judge says nothing else of them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.parity.verdict import Fault
from tests.parity import published
from tests.parity.small import Small, fault

Batch = tuple[Tensor, Tensor]

fault("dropout", Fault.ONLY_LAST)(published.NemoAutomodel3530)


@fault("dense", Fault.TIMES_STAGES)
class TimesStages(Small):
    stages = 3

    def loss(self, output: Any, target: Tensor) -> Any:
        return super().loss(output, target) * self.stages


@fault("dense", Fault.ONLY_FIRST, "counts")
def only_first(trainer: Any) -> int:
    return int(trainer.k == 0)


@fault("dense", Fault.MICROBATCHES, "counts")
def last_not_divided(trainer: Any) -> int:
    return 4 if trainer.k == 3 else 1


@fault("dense", Fault.LOST)
class LostInTheLastMicrobatch(Small):
    """The first stage's weight gradients of the last microbatch are never computed."""

    lost: Any = None

    def backward(self, stage: int, k: int, out: tuple[Tensor, ...], gradient: Any) -> None:
        own = list(self.parts[stage].parameters())
        before = [None if p.grad is None else p.grad.clone() for p in own]
        super().backward(stage, k, out, gradient)
        if (stage, k) == (0, self.microbatches - 1):
            self.lost = [p.grad - g for p, g in zip(own, before, strict=True)]
            for parameter, kept in zip(own, before, strict=True):
                parameter.grad = kept


@fault("dense", Fault.LATE)
class LateInTheLastMicrobatch(LostInTheLastMicrobatch):
    """They come an update later."""

    def step(self, batch: Batch) -> float | None:
        self.late, self.lost = self.lost, None
        return super().step(batch)

    def change(self) -> None:
        for parameter, late in zip(self.parts[0].parameters(), self.late or (), strict=False):
            parameter.grad += late


@fault("dense", Fault.LATE)
class LateAltogether(Small):
    before: list[Tensor] | None = None

    def change(self) -> None:
        own = list(self.parts[0].parameters())
        now = [p.grad for p in own]
        for parameter, late in zip(own, self.before or map(torch.zeros_like, own), strict=True):
            parameter.grad = late
        self.before = [g for g in now if g is not None]


@fault("dense", Fault.STALE.format("1 update"))
class Stale(Small):
    """Gradients are taken at the weights before the last update."""

    before: list[Tensor] | None = None

    def stale_parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def step(self, batch: Batch) -> float | None:
        own = self.stale_parameters()
        self.newest = [p.detach().clone() for p in own]
        for parameter, old in zip(own, self.before or self.newest, strict=True):
            parameter.data.copy_(old)
        loss = super().step(batch)
        self.before = self.newest
        return loss

    def change(self) -> None:
        for parameter, newest in zip(self.stale_parameters(), self.newest, strict=True):
            parameter.data.copy_(newest)


@fault("dense", Fault.STALE.format("1 update"))
class LastStageStale(Stale):
    """One stage alone gets new weights an update late."""

    def stale_parameters(self) -> list[nn.Parameter]:
        return list(self.parts[1].parameters())


@fault("dense", Fault.CLIPPED_BY_STAGE, "change")
def clipped_by_stage(trainer: Any) -> None:
    for part in trainer.parts:
        nn.utils.clip_grad_norm_(part.parameters(), 0.15)


@fault("dense", Fault.CLIPPED)
class Clipped(Small):
    def change(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.15)


@fault("tied", Fault.TIED_TWICE, "change")
def tied_twice(trainer: Any) -> None:
    trainer.model[0].weight.grad *= 2


@fault("dense", Fault.MOMENTUM)
class WithMomentum(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, partial(optimizer, momentum=0.9))


@fault("dense", Fault.RATE)
class FallingRate(Small):
    def update(self) -> None:
        super().update()
        self.optimizer.param_groups[0]["lr"] *= 0.9


@fault("dense", Fault.EACH_MICROBATCH)
class UpdateEachMicrobatch(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def update(self) -> None:
        pass


@fault("dense", Fault.MICROBATCHES)
class Repeated(Small):
    def cut(self, batch: Batch) -> list[Batch]:
        first, _, *others = super().cut(batch)
        return [first, first, *others]


@fault("dense", Fault.TARGETS)
class OtherTargets(Small):
    def cut(self, batch: Batch) -> list[Batch]:
        parts = super().cut(batch)
        return [(x, parts[k - 1][1]) for k, (x, _) in enumerate(parts)]


@fault("dense", Fault.START, "built")
def other_start(trainer: Any, model: Any) -> None:
    model[3].linear.reset_parameters()


@fault("dense", Fault.EARLIER_BATCH)
class BatchBefore(Small):
    before: Batch | None = None

    def given(self, x: Tensor, target: Tensor) -> Batch:
        used, self.before = self.before or (x, target), (x, target)
        return used


@fault("frozen", Fault.FROZEN)
class Thawed(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model.requires_grad_(True), optimizer)


@fault("dense", Fault.LOSS)
class LossOfTheLast(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        return 4 * loss if k == 3 else 0.0


@fault("batch-norm", Fault.BATCH_NORM)
class StatisticsTwice(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        with torch.no_grad():
            self.model(x)
        return super().microbatch(k, x, target)

    def parameters(self) -> Any:
        return self.model.state_dict()


@fault("batch-norm", Fault.BATCH_NORM)
class WholeBatchNormalised(Small):
    def cut(self, batch: Batch) -> list[Batch]:
        return [batch]
