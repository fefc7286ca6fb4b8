"""torchtitan #963: layers that do not divide evenly among the stages are left out."""

from typing import Any

from torch import nn

from tests.parity.small import Small


class Fault(Small):
    stages = 3

    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, optimizer)
        length = (len(model) - 1) // self.stages  # the head is added to the last stage
        bodies = [model[length * stage : length * (stage + 1)] for stage in range(self.stages - 1)]
        last = nn.Sequential(*model[2 * length : 3 * length - 1], model[-1])
        self.parts = [*bodies, last]
