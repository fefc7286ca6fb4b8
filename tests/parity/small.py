"""A pipeline of stages in one process, right as it stands; the faults override a line of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.parity.adapter import train
from pipekit.parity.judge import judged
from pipekit.parity.verdict import Verdict


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

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        self.optimizer.zero_grad()
        self.terms = self.model.count(batch[1])
        losses = [self.microbatch(k, x, y) for k, (x, y) in enumerate(self.cut(batch))]
        self.update()
        return float(sum(losses))

    def cut(self, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*(part.tensor_split(self.microbatches) for part in batch), strict=True))

    def loss(self, output: Any, target: Tensor) -> Any:
        return self.model.loss(output, target) * (self.model.count(target) / self.terms)

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        inputs, outputs = [], []
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


class MeanOfMeans(Small):
    """Each microbatch counts alike, however many terms it has."""

    def loss(self, output: Any, target: Tensor) -> Any:
        return self.model.loss(output, target) / self.microbatches


class Uncleared(Small):
    """Never clears its gradients; ``number`` is for faults of some batches."""

    number = 0

    def build(self, model: Any, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
        super().build(model, optimizer)
        self.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


def unstated(adapter: type[Small]) -> type:
    """Return the same trainer with the three methods alone: it states nothing."""

    class Alone:
        def build(self, model: Any, optimizer: Any) -> None:
            self.inner = adapter()
            self.inner.build(model, optimizer)
            self.step, self.parameters = self.inner.step, self.inner.parameters

    return Alone
