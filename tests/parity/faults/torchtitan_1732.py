"""torchtitan #1732: every round of accumulation divides what has been accumulated before."""

from typing import Any

from torch import Tensor

from tests.parity.small import Small


class Fault(Small):
    microbatches = 8  # two rounds of four

    def loss(self, output: Any, target: Tensor) -> Tensor:
        value: Tensor = self.model.loss(output, target) / 2
        return value

    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        if k in (3, 7):
            for parameter in self.model.parameters():
                parameter.grad /= 4
        return loss / 4
