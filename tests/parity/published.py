"""Faults of trainers that were published, made again: each class names its report."""

import copy
from typing import Any

from torch import Tensor, nn

from tests.parity.small import Small


class Torchtitan2972(Small):
    """torchtitan #2972: the pipeline's loss is a sum, divided by its tokens for the log only."""

    def loss(self, output: Any, target: Tensor) -> Any:
        return self.model.loss(output, target) * self.model.count(target)

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        summed = super().step(batch)
        return None if summed is None else summed / self.terms


class Torchtitan1732(Small):
    """torchtitan #1732: every round of accumulation divides what has been accumulated before."""

    microbatches = 8  # two rounds of four

    def loss(self, output: Any, target: Tensor) -> Any:
        return self.model.loss(output, target) / 2

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        if k in (3, 7):
            for parameter in self.model.parameters():
                parameter.grad /= 4
        return loss / 4


class Torchtitan963(Small):
    """torchtitan #963: hidden layers beyond a whole number a stage are made on no stage.

    There ``num_hidden_layers // num_stages`` layers are made on each stage, between the embedding on the
    first and the head on the last, and the remainder nowhere; the loss still falls."""

    stages = 3

    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, optimizer)
        hidden = model[1:-1]
        length = len(hidden) // self.stages
        first, middle, last = (hidden[length * n : length * (n + 1)] for n in range(self.stages))
        self.parts = [nn.Sequential(model[0], *first), middle, nn.Sequential(*last, model[-1])]


class Torchtitan771(Small):
    """torchtitan #771: what is done to the model does not reach the copies that the stages run.

    The issue lists losses to compare with a run without stages.  The one that differed was mended by
    #792: context parallelism cut the position table of ``model``, and the stages used those of
    ``model_parts``.  The judge's models have no positions; here the optimizer gets the model's weights."""

    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, optimizer)
        self.parts[1] = copy.deepcopy(self.parts[1])

    def parameters(self) -> Any:
        return {n: p for part in self.parts for n, p in part.named_parameters()}


class DeepSpeed7773(Small):
    """DeepSpeed #7773: microbatches' gradients are summed, and the loss averaged in the log only."""

    def loss(self, output: Any, target: Tensor) -> Any:
        return self.model.loss(output, target)

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        summed = super().step(batch)
        return None if summed is None else summed / self.microbatches


class DeepSpeed8154(Small):
    """DeepSpeed #8154: every stage divides the gradient that it passes on by the microbatches."""

    stages = 4

    def sent(self, stage: int, gradient: tuple[Tensor | None, ...]) -> Any:
        return tuple(None if g is None else g / self.microbatches for g in gradient)


class NemoAutomodel3530(Small):
    """NeMo Automodel #3530: setting up the stages anew clears what earlier microbatches gave."""

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        self.model.zero_grad()
        return super().microbatch(k, x, target)


class TransformerEngine3437(Small):
    """TransformerEngine #3437: of a tied weight's delayed gradients the last replaces the others.

    Backwards keep each stage's weight gradients for later; then each is assigned, not added.
    """

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        self.delayed: dict[tuple[int, nn.Parameter], Tensor] = {}
        return super().step(batch)

    def backward(self, stage: int, k: int, out: tuple[Tensor, ...], gradient: Any) -> None:
        super().backward(stage, k, out, gradient)
        for parameter in self.parts[stage].parameters():
            known = self.delayed.get((stage, parameter))
            assert parameter.grad is not None
            self.delayed[stage, parameter] = parameter.grad + (0 if known is None else known)
            parameter.grad = None

    def change(self) -> None:
        for (_, parameter), gradient in self.delayed.items():
            parameter.grad = gradient
