"""Weights that are predicted some updates ahead, or guessed of the past.

W^ = W - s lr d, d being the step that the optimizer's state suggests.  SpecTrain has d of SGD:
Chen, Yang and Cheng, "Efficient and Robust Parallel DNN Training through Model Parallelism on
Multi-GPU Platform" (arXiv 1809.02839), section 3.2, equations 4 to 6.  PipeOptim has that of any
optimizer whose step its state gives without a new gradient: Guan et al., "PipeOptim: Ensuring
Effective 1F1B Schedule with Optimizer-Dependent Weight Prediction" (arXiv 2312.00839), section III.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from pipekit.schedules import Op
from pipekit.staleness.mitigation import Mitigation, Pass, Update, Weight, require_decay


class Prediction(Mitigation, ABC):
    """Predicts weights by as many updates as a subclass says."""

    @abstractmethod
    def ahead(self, at: Pass) -> int:
        """Return by how many updates a pass looks ahead, from the version that it reads."""

    def require(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, SGD | Adam):
            raise ValueError(
                f"the weights that {type(optimizer).__name__} will make cannot be predicted from "
                f"its state: use SGD with momentum, Adam or AdamW, or another mitigation"
            )
        for group in optimizer.param_groups:
            if isinstance(optimizer, SGD) and not group["momentum"]:
                raise ValueError(
                    "plain SGD keeps nothing to predict its next step from: give it momentum"
                )
            if group["maximize"] or group.get("amsgrad"):
                raise ValueError(
                    "weights are predicted with neither maximize=True nor amsgrad=True"
                )

    def weights(self, at: Pass, weight: Weight) -> Tensor:
        steps, step = self.ahead(at), expected_step(weight)
        if not steps or step is None:
            return weight.read
        rate: float = steps * weight.options["lr"]
        return weight.read - rate * step


@dataclass(frozen=True)
class SpecTrain(Prediction):
    """W^ = W - s lr v, where stage k of N (from 0) looks ahead

    - s = floor(k/2) + N - k - 1 updates in a forward,
    - s = floor(k/2) updates in a backward.

    The paper's v is a running mean of gradients, which ``torch.optim.SGD(momentum=g,
    dampening=g)`` keeps; without ``dampening`` the learning rate is another by a factor.  With Adam
    and AdamW it takes their step, which is XPipe (Guan et al. 2019) for whole minibatches; XPipe's
    rule for microbatches is not here.  On ``schedules.pipedream(stages, n, stashing=False)``.
    """

    stashing = False

    def ahead(self, at: Pass) -> int:
        behind = at.stages - at.stage - 1 if at.op is Op.FORWARD else 0
        return at.stage // 2 + behind


@dataclass(frozen=True)
class PipeOptim(Prediction):
    """W^ = W - s lr d in a forward, s = N - k - 1 on stage k of N (from 0); a backward reads W.

    d is SGD's momentum buffer, or m_hat / (sqrt(v_hat) + eps) of Adam and AdamW.  On
    ``schedules.pipedream(stages, n, stashing=False)``, where s is just how many updates a backward
    comes after its forward.

    Attributes:
        extra: updates by which a forward looks further.  The authors' released code
            (github.com/guanleics/PipeOptim, ``optimizer.py``) has s = N - k, one more than the
            paper and its own README: ``PipeOptim(extra=1)``, by name ``pipeoptim:extra=1``.
    """

    extra: int = 0
    stashing = False

    def __post_init__(self) -> None:
        if self.extra < 0:
            raise ValueError(f"extra must be at least 0 updates, not {self.extra}")

    def ahead(self, at: Pass) -> int:
        return at.stages - at.stage - 1 + self.extra if at.op is Op.FORWARD else 0


@dataclass(frozen=True)
class Ahead(Prediction):
    """Has both passes of a microbatch read weights that are predicted a number of updates ahead.

    With weight stashing: the prediction is made when the version is, from the optimizer's state of
    that moment.  With 2BW, whose gradients are one update late, ``Ahead(1)`` is the natural choice.
    No paper is known to us that does just this.

    Attributes:
        steps: how many updates.
    """

    steps: int = 1
    stashing = True

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0 updates, not {self.steps}")

    def ahead(self, at: Pass) -> int:
        return self.steps


@dataclass(frozen=True)
class PipeMare(Mitigation):
    """Learning-rate rescheduling (T1, section 3.1) and discrepancy correction (T2, section 3.2).

    Later stages learn faster at first, and backwards guess their forwards' weights: Yang et al.,
    "PipeMare: Asynchronous Pipeline Parallel DNN Training" (MLSys 2021, arXiv 1910.05124).

    T1: update t of a stage with delay tau has the learning rate lr tau^(-p), p = 1 - min(t/K, 1).
    T2: a backward reads u = W - tau delta, delta being the running mean of the weights' changes,
    delta <- gamma delta + (1 - gamma)(W(t+1) - W(t)), with gamma = D^(1/tau).  T3, synchronous
    training first, is the schedule's business.

    In the paper's pipeline a stage's forwards and backwards run at the same time, so that its stage
    i of P (from 1) is tau = (2(P - i) + 1)/N minibatches behind.  1F1B takes turns, and tau is what
    the schedule really has, P - i.  Where that is 0, nothing is corrected, and T1 takes it as 1.
    On ``schedules.pipedream(stages, n, stashing=False)`` or ``schedules.paci``, with any optimizer.

    Attributes:
        anneal: K, the updates after which all stages have the same rate; 0: from the start (no T1).
        decay: D; exp(-2) is the paper's choice by theory, about 0.135.
        corrects: whether T2 is done.
    """

    anneal: int
    decay: float = math.exp(-2)
    corrects: bool = True
    stashing = False
    tensors = 1

    def __post_init__(self) -> None:
        if self.anneal < 0:
            raise ValueError(f"anneal must be at least 0 updates, not {self.anneal}")
        require_decay(self.decay)

    def weights(self, at: Pass, weight: Weight) -> Tensor:
        """Return what a forward has read, as far as it can be guessed, for its backward."""
        if at.op is Op.FORWARD or "delta" not in weight.memory:
            return weight.read
        return weight.read - at.delay * weight.memory["delta"]

    def rate(self, at: Update) -> float:
        p = 1 - min(at.number / self.anneal, 1.0) if self.anneal else 0.0
        return float(max(at.delay, 1) ** -p)

    def updated(self, at: Update, weight: Weight, before: Tensor) -> Tensor:
        if at.delay and self.corrects:
            gamma = self.decay ** (1 / at.delay)
            delta = weight.memory.get("delta", torch.zeros_like(before))
            weight.memory["delta"] = gamma * delta + (1 - gamma) * (weight.newest - before)
        return weight.newest


def expected_step(weight: Weight) -> Tensor | None:
    """Return d, by which an update changes a parameter times the rate; None before the first one.

    SGD: its momentum buffer.  Adam, AdamW: m_hat / (sqrt(v_hat) + eps); weight decay is left out,
    as in the papers.
    """
    state, options = weight.state, weight.options
    if not state:
        return None
    if "momentum_buffer" in state:
        buffer: Tensor | None = state["momentum_buffer"]
        return buffer
    (beta1, beta2), count = options["betas"], float(state["step"])
    mean: Tensor = state["exp_avg"] / (1 - beta1**count)
    square: Tensor = state["exp_avg_sq"] / (1 - beta2**count)
    eps: float = options["eps"]
    return mean / (square.sqrt() + eps)
