"""torchtitan #963: hidden layers beyond a whole number a stage are made on no stage.

There ``num_hidden_layers // num_stages`` layers are made on each stage, between the embedding on the
first and the head on the last, and the remainder nowhere; the loss still falls.
"""

from typing import Any

from torch import nn

from tests.parity.small import Small


class Fault(Small):
    stages = 3

    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, optimizer)
        hidden = model[1:-1]
        length = len(hidden) // self.stages
        first, middle, last = (hidden[length * n : length * (n + 1)] for n in range(self.stages))
        self.parts = [nn.Sequential(model[0], *first), middle, nn.Sequential(*last, model[-1])]
