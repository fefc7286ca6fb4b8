"""TransformerEngine #3437: of a tied weight's delayed gradients the last replaces the others."""

from typing import Any

from torch import Tensor, nn

from tests.parity.small import Small


class Fault(Small):
    """Backwards keep each stage's weight gradients for later; then each is assigned, not added."""

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

    def update(self) -> None:
        for (_, parameter), gradient in self.delayed.items():
            parameter.grad = gradient
        super().update()
