"""torchtitan #771: what is done to the model does not reach the copies that the stages run.

The issue lists losses to compare with a run without stages.  The one that differed was mended by
#792: context parallelism cut the position table of ``model``, and the stages used those of
``model_parts``.  The judge's models have no positions; here the optimizer gets the model's weights.
"""

import copy
from typing import Any

from tests.parity.small import Small


class Fault(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, optimizer)
        self.parts[1] = copy.deepcopy(self.parts[1])

    def parameters(self) -> Any:
        return {n: p for part in self.parts for n, p in part.named_parameters()}
