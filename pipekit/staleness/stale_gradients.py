"""Optimizers and rules for stale gradients, computed at the weights that the schedule names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pipekit.staleness.mitigation import Mitigation, Update, Weight, require_decay


@dataclass(frozen=True)
class ErrorFeedback(Mitigation):
    """W(t+1) = W(t) - u(t) - c (u(t) - u(t-1)), u(t) being the step that the optimizer makes.

    Update t should have had the gradient that comes with update t+1, which so makes up for the
    difference.  Any optimizer will do; the first update is an ordinary one.  Meant for 2BW.

    Attributes:
        coefficient: c.
    """

    coefficient: float = 1.0
    tensors = 1

    def updated(self, at: Update, weight: Weight, before: Tensor) -> Tensor:
        last = weight.memory.get("step")
        step = weight.memory["step"] = before - weight.newest
        return weight.newest if last is None else weight.newest - self.coefficient * (step - last)


@dataclass(frozen=True)
class GapAware(Mitigation):
    """gradient / (1 + abs(W(t) - W(v)) / C), number by number; the gradient was taken at W(v).

    C is the size of the stage's usual step: the root of the running mean of squared changes,
    decay a + (1 - decay)(W(t+1) - W(t))^2, divided by 1 - decay^t, with any optimizer.  FTPipe's
    code, from which the elementwise form and the decay of 0.999 are known to us, has the largest
    learning rate times SGD's momentum buffer in their place, and divides SGD's weight decay as
    well.  With weight stashing, and one version for all gradients of an update: PipeDream, 2BW.

    Attributes:
        decay: of the running mean.
        eps: added to C.
    """

    decay: float = 0.999
    eps: float = 1e-8
    stashing = True
    tensors = 1

    def __post_init__(self) -> None:
        require_decay(self.decay)

    def gradient(self, at: Update, weight: Weight, gradient: Tensor) -> Tensor:
        if "square" not in weight.memory:
            return gradient
        mean = weight.memory["square"] / (1 - self.decay**at.number)
        gap = (weight.newest - weight.read).abs() / (mean.sqrt() + self.eps)
        return gradient / (1 + gap)

    def updated(self, at: Update, weight: Weight, before: Tensor) -> Tensor:
        moved = weight.newest - before
        square = weight.memory.get("square", torch.zeros_like(before))
        weight.memory["square"] = self.decay * square + (1 - self.decay) * (moved * moved)
        return weight.newest


def nesterov(
    lr: float, beta1: float = 0.99, beta2: float = 0.999, weight_decay: float = 0.01
) -> Callable[[Any], Optimizer]:
    """Return what makes the paper's optimizer of a stage: NAdam with decoupled weight decay.

    For ``Pipeline(..., optimizer=nesterov(lr=3e-4))`` on ``schedules.pipedream``, with stashing.
    It is torch's NAdam, which the paper names, with torch's schedule of the momentum (it starts at
    half of ``beta1``).  The authors' code has 0.99, a rate of 3e-4 with warm-up and cosine decay,
    and clips gradients at 10.

    Args:
        lr: learning rate.
        beta1: of the momentum.
        beta2: of the squares.
        weight_decay: decoupled, as in AdamW.
    """
    return partial(
        torch.optim.NAdam,
        lr=lr,
        betas=(beta1, beta2),
        weight_decay=weight_decay,
        decoupled_weight_decay=True,
    )
