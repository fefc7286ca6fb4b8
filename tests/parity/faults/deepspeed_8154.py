"""DeepSpeed #8154: every stage divides the gradient that it passes on by the microbatches."""

from typing import Any

from torch import Tensor

from tests.parity.small import Small


class Fault(Small):
    stages = 4

    def sent(self, stage: int, gradient: tuple[Tensor | None, ...]) -> Any:
        return tuple(None if g is None else g / self.microbatches for g in gradient)
