"""DeepSpeed #7773: microbatches' gradients are summed, and the loss averaged in the log only."""

from typing import Any

from torch import Tensor

from tests.parity.small import Small


class Fault(Small):
    def loss(self, output: Any, target: Tensor) -> Tensor:
        value: Tensor = self.model.loss(output, target)
        return value

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        summed = super().step(batch)
        return None if summed is None else summed / self.microbatches
