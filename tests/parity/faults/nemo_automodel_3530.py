"""NeMo Automodel #3530: setting up the stages anew clears what earlier microbatches gave."""

from typing import Any

from torch import Tensor

from tests.parity.small import Small


class Fault(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        self.model.zero_grad()
        return super().microbatch(k, x, target)
