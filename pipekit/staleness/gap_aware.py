"""Gap-aware training: a gradient counts the less, the further the weights have moved since.

Barkai, Hakimi and Schuster, "Gap-Aware Mitigation of Gradient Staleness" (ICLR 2020, arXiv
1909.10802), section 4; used on pipelines by FTPipe (Eliad et al. 2021).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipekit.staleness.mitigation import Mitigation, Update, Weight


@dataclass(frozen=True)
class GapAware(Mitigation):
    """gradient / (1 + abs(W(t) - W(v)) / C), number by number; the gradient was taken at W(v).

    C is the size of the stage's usual step: the root of the running mean of squared changes,
    decay a + (1 - decay)(W(t+1) - W(t))^2, divided by 1 - decay^t.  As the steps that were really
    made are measured, any optimizer will do.  FTPipe's code, from which the elementwise form and
    the decay of 0.999 are known to us, has the largest learning rate times SGD's momentum buffer in
    their place, and divides SGD's weight decay as well.  With weight stashing, and one version for
    all gradients of an update: PipeDream, 2BW.

    Attributes:
        decay: of the running mean.
        eps: added to C.
    """

    decay: float = 0.999
    eps: float = 1e-8
    stashing = True
    tensors = 1

    def gradient(self, at: Update, weight: Weight, gradient: Tensor) -> Tensor:
        """Return it, divided by its penalty."""
        if "square" not in weight.memory:
            return gradient
        mean = weight.memory["square"] / (1 - self.decay**at.number)
        gap = (weight.newest - weight.read).abs() / (mean.sqrt() + self.eps)
        return gradient / (1 + gap)

    def updated(self, at: Update, weight: Weight, before: Tensor) -> Tensor:
        """Follow how large steps are."""
        moved = weight.newest - before
        square = weight.memory.get("square", torch.zeros_like(before))
        weight.memory["square"] = self.decay * square + (1 - self.decay) * (moved * moved)
        return weight.newest
