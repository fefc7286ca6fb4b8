"""PipeMare: later stages learn faster at first, and backwards guess their forwards' weights.

Yang et al., "PipeMare: Asynchronous Pipeline Parallel DNN Training" (MLSys 2021, arXiv 1910.05124).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pipekit.schedules import Op
from pipekit.staleness.mitigation import Mitigation, Pass, Update, Weight


@dataclass(frozen=True)
class PipeMare(Mitigation):
    """Learning-rate rescheduling (T1, section 3.1) and discrepancy correction (T2, section 3.2).

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
