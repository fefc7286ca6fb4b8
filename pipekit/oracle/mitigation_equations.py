"""What papers do about stale weights, carried out slowly: :mod:`pipekit.oracle`'s equations.

Nothing here shares code with :mod:`pipekit.staleness`, which the workers run: every value is
computed anew, from all weights that ever were.  With W(t) the weights of a stage after t updates, v
the version that a forward reads, t the newest when its backward runs or its update is made, tau the
stage's delay in updates, k of N the stage (from 0), lr the learning rate, and d the step that the
optimizer's state suggests (SGD: its momentum buffer; Adam and AdamW: m_hat / (sqrt(v_hat) + eps)):

=================  ============================================================  ==================
equations          what is other than in plain training                          source
=================  ============================================================  ==================
:class:`Ahead`     forward and backward read W(v) - s lr(v) d(v)                 2BW's s is 1
:class:`SpecTrain` forward: the same with s = floor(k/2) + N - k - 1; backward:  Chen et al. 2018,
                   W(t) - s lr(t) d(t) with s = floor(k/2)                       3.2, eq. 4 to 6
:class:`PipeOptim` forward: the same with s = N - k - 1; backward: W(t)          Guan et al. 2023,
                                                                                 III
                   (s = N - k in its released code)
:class:`PipeMare`  backward: W(t) - tau delta(t), delta(t+1) = gamma delta(t) +  Yang et al. 2021,
                   (1 - gamma)(W(t+1) - W(t)), gamma = D^(1/tau); and update     3.1 and 3.2
                   t+1 has lr tau^(-p), p = 1 - min(t/K, 1)
:class:`GapAware`  gradient / (1 + abs(W(t) - W(v)) / C), C the root mean        Barkai et al. 2020,
                   square of the steps so far                                    4
:class:`Feedback`  W(t+1) = W(t) - u(t) - c (u(t) - u(t-1)), u(t) the step that  arXiv 2606.30634,
                   the optimizer makes                                           3
=================  ============================================================  ==================
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]  # by the names in the unsplit model's ``state_dict``


@dataclass
class Past:
    """All that a stage ever was, after 0, 1, 2, ... updates.

    ``stepped`` is what the optimizer made of W(0), W(1), ..., before any correction; ``states`` and
    ``options`` are the optimizer's state of each parameter, and its group.
    """

    stage: int
    stages: int
    delay: int  # in updates, from the version that a forward reads to its own update, tau
    weights: list[Weights] = field(default_factory=list)
    stepped: list[Weights] = field(default_factory=list)
    states: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    options: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def ahead(self, name: str, t: int, steps: int) -> Tensor:
        """Return W(t) as it is expected to be after some more updates."""
        weight, state, options = self.weights[t][name], self.states[t][name], self.options[t][name]
        step: Tensor | None
        if not steps or not state:
            return weight
        if "momentum_buffer" in state:
            step = state["momentum_buffer"]
            if step is None:
                return weight
        else:
            (beta1, beta2), count = options["betas"], float(state["step"])
            mean = state["exp_avg"] / (1 - beta1**count)
            square = state["exp_avg_sq"] / (1 - beta2**count)
            step = mean / (square.sqrt() + options["eps"])
        rate: float = steps * options["lr"]
        return weight - rate * step


class Equations:
    """Plain training; others say what is other."""

    def forward(self, past: Past, name: str, v: int) -> Tensor:
        """Return what the forward of a microbatch reads whose table names version v."""
        return past.weights[v][name]

    def backward(self, past: Past, name: str, t: int) -> Tensor:
        """Return what a backward reads that does not read its forward's weights."""
        return past.weights[t][name]

    def gradient(self, past: Past, name: str, v: int, t: int, gradient: Tensor) -> Tensor:
        """Return what the optimizer is given in update t+1, of a gradient taken at W(v)."""
        return gradient

    def rate(self, past: Past, t: int) -> float:
        """Return by what the learning rate of update t+1 is multiplied."""
        return 1.0

    def after(self, past: Past, name: str, t: int) -> Tensor:
        """Return W(t+1); ``past.stepped[t]`` is what the optimizer made of W(t)."""
        return past.stepped[t][name]


@dataclass
class Ahead(Equations):
    """Weights that are predicted some updates ahead, in both passes."""

    steps: int = 1

    def forward(self, past: Past, name: str, v: int) -> Tensor:
        return past.ahead(name, v, self.steps)


class SpecTrain(Equations):
    """Both passes predict when the minibatch will have left the pipeline."""

    def forward(self, past: Past, name: str, v: int) -> Tensor:
        return past.ahead(name, v, past.stage // 2 + past.stages - past.stage - 1)

    def backward(self, past: Past, name: str, t: int) -> Tensor:
        return past.ahead(name, t, past.stage // 2)


@dataclass
class PipeOptim(Equations):
    """The forward predicts the weights that the backward will read, or ``extra`` updates later."""

    extra: int = 0

    def forward(self, past: Past, name: str, v: int) -> Tensor:
        return past.ahead(name, v, past.stages - past.stage - 1 + self.extra)


@dataclass
class PipeMare(Equations):
    """The backward guesses the forward's weights; late stages learn faster than early ones."""

    anneal: int = 0
    decay: float = math.exp(-2)
    corrects: bool = True

    def backward(self, past: Past, name: str, t: int) -> Tensor:
        tau = past.delay
        if not tau or not self.corrects:
            return past.weights[t][name]
        gamma = self.decay ** (1 / tau)
        delta = torch.zeros_like(past.weights[0][name])
        for i in range(t):
            moved = past.weights[i + 1][name] - past.weights[i][name]
            delta = gamma * delta + (1 - gamma) * moved
        return past.weights[t][name] - tau * delta

    def rate(self, past: Past, t: int) -> float:
        p = 1 - min(t / self.anneal, 1.0) if self.anneal else 0.0
        return float(max(past.delay, 1) ** -p)


@dataclass
class GapAware(Equations):
    """Each number of a gradient counts the less, the more of its usual steps it is behind."""

    decay: float = 0.999
    eps: float = 1e-8

    def gradient(self, past: Past, name: str, v: int, t: int, gradient: Tensor) -> Tensor:
        if t == 0:
            return gradient
        square = torch.zeros_like(past.weights[0][name])
        for i in range(t):
            moved = past.weights[i + 1][name] - past.weights[i][name]
            square = self.decay * square + (1 - self.decay) * (moved * moved)
        usual = (square / (1 - self.decay**t)).sqrt() + self.eps
        return gradient / (1 + (past.weights[t][name] - past.weights[v][name]).abs() / usual)


@dataclass
class Feedback(Equations):
    """The next step makes up for what was wrong with the last one."""

    coefficient: float = 1.0

    def after(self, past: Past, name: str, t: int) -> Tensor:
        stepped = past.stepped[t][name]
        if t == 0:
            return stepped
        own = past.weights[t][name] - stepped
        last = past.weights[t - 1][name] - past.stepped[t - 1][name]
        return stepped - self.coefficient * (own - last)
