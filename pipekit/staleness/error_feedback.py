"""Error feedback for gradients that are one update late.

Zmushko et al., "One-Step Gradient Delay is Not a Barrier for Large-Scale Asynchronous Pipeline
Parallel LLM Pretraining" (ICML 2026, arXiv 2606.30634), section 3, algorithms 1 and 2.  The paper's
text was not at hand; the equation is known from a public implementation that names it.
"""

from dataclasses import dataclass

from torch import Tensor

from pipekit.staleness.mitigation import Mitigation, Update, Weight


@dataclass(frozen=True)
class ErrorFeedback(Mitigation):
    """W(t+1) = W(t) - u(t) - c (u(t) - u(t-1)), u(t) being the step that the optimizer makes.

    Update t should have had the gradient that comes with update t+1, which so makes up for the
    difference.  u is what the optimizer changes, learning rate and weight decay included, so that
    any will do; the first update is an ordinary one.  Meant for 2BW.

    Attributes:
        coefficient: c.
    """

    coefficient: float = 1.0
    tensors = 1

    def updated(self, at: Update, weight: Weight, before: Tensor) -> Tensor:
        """Return the weights after the step and its correction."""
        last = weight.memory.get("step")
        step = weight.memory["step"] = before - weight.newest
        return weight.newest if last is None else weight.newest - self.coefficient * (step - last)
