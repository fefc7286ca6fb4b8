"""torchtitan #771: the layers of a stage that its optimizer does not know never change."""

from typing import Any

from tests.parity.small import Small


class Fault(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, optimizer)
        self.optimizer = optimizer(self.parts[0].parameters())
