"""A pipeline of stages in one process, right as it stands; the faults override a line of it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.parity.adapter import train
from pipekit.parity.judge import judged
from pipekit.parity.verdict import Fault, Verdict


def verdict_on(adapter: Any, model: str = "dense") -> Verdict:
    """Return the verdict on an adapter that needs no processes of its own."""
    return judged(model, [train(adapter, model)])


class Small:
    """Two stages, four microbatches, each backward by hand from stage to stage."""

    microbatches, stages = 4, 2

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        self.model = model
        length = -(-len(model) // self.stages)
        self.parts = [model[first : first + length] for first in range(0, len(model), length)]
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.built(model)

    def built(self, model: Any) -> None:
        """Change nothing of the model and its parts."""

    def given(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch as it is."""
        return x, target

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        batch = self.given(*batch)
        self.optimizer.zero_grad()
        self.terms = self.model.count(batch[1])
        losses = [self.microbatch(k, x, y) for k, (x, y) in enumerate(self.cut(batch))]
        self.update()
        return float(sum(losses))

    def cut(self, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*(part.tensor_split(self.microbatches) for part in batch), strict=True))

    def loss(self, output: Any, target: Tensor) -> Any:
        share = self.model.count(target) / self.terms
        return self.model.loss(output, target) * (share * self.counts())

    def counts(self) -> int:
        """Return how often the microbatch counts."""
        return 1

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        self.k, inputs, outputs = k, [], []
        for part in self.parts:
            own = (x,) if isinstance(x, Tensor) else x
            own = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in own)
            inputs.append(own)
            x = part(*own)
            outputs.append(x)
        loss = self.loss(x, target)
        gradient: Any = None
        for stage in reversed(range(len(self.parts))):
            out = (loss,) if stage == len(self.parts) - 1 else outputs[stage]
            self.backward(stage, k, (out,) if isinstance(out, Tensor) else out, gradient)
            gradient = self.sent(stage, tuple(t.grad for t in inputs[stage]))
        return float(loss.detach())

    def backward(self, stage: int, k: int, out: tuple[Tensor, ...], gradient: Any) -> None:
        if gradient is not None:
            pairs = [pair for pair in zip(out, gradient, strict=True) if pair[1] is not None]
            out, gradient = zip(*pairs, strict=True)
        torch.autograd.backward(out, gradient)

    def sent(self, stage: int, gradient: tuple[Tensor | None, ...]) -> Any:
        return gradient

    def update(self) -> None:
        self.change()
        self.optimizer.step()

    def change(self) -> None:
        """Do nothing to the gradients before an update."""

    def parameters(self) -> Mapping[str, Tensor]:
        return dict(self.model.named_parameters(remove_duplicate=False))


FAULTS: dict[str, list[tuple[type[Small], str, str]]] = defaultdict(list)
"""Trainers by the file that they are in, each with a model and the class of its fault there."""


def fault(model: str, kind: str, method: str = "") -> Callable[[Any], Any]:
    """Add a trainer to the faults; or the right one with a function in place of a method."""

    def add(trainer: Any) -> Any:
        own = type(trainer.__name__, (Small,), {method: trainer}) if method else trainer
        FAULTS[trainer.__module__.rpartition(".")[2]].append((own, model, kind))
        return own

    return add


@fault("tokens", Fault.PER_MICROBATCH)
@fault("odd", Fault.PER_MICROBATCH)
class MeanOfMeans(Small):
    """Each microbatch counts alike, however many terms it has."""

    def loss(self, output: Any, target: Tensor) -> Any:
        return self.model.loss(output, target) / self.microbatches


@fault("dense", Fault.KEPT)
class Uncleared(Small):
    """Never clears its gradients; ``number`` is for faults of some batches."""

    number = 0

    def built(self, model: Any) -> None:
        self.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


def unstated(adapter: type[Small]) -> type:
    """Return the same trainer with the three methods alone: it states nothing."""

    class Alone:
        def build(self, model: Any, optimizer: Any) -> None:
            self.inner = adapter()
            self.inner.build(model, optimizer)
            self.step, self.parameters = self.inner.step, self.inner.parameters

    return Alone
