"""torchtitan #2972: the pipeline's loss is a sum, divided by its tokens for the log only."""

from typing import Any

from torch import Tensor

from tests.parity.small import Small


class Fault(Small):
    def loss(self, output: Any, target: Tensor) -> Tensor:
        value: Tensor = self.model.loss(output, target) * self.model.count(target)
        return value

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        summed = super().step(batch)
        return None if summed is None else summed / self.terms
