"""The asynchronous methods of the sweep, and the optimizers whose patience with them is compared.

Gradients are not clipped: a common norm would make the stages of an asynchronous pipeline wait for
one another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from experiments.study.training import share_of_rate
from pipekit import schedules, staleness
from pipekit.schedules import Schedule

SYNC = "flush"  # no delay: what all others are compared with
BSP = "bsp"
"""Data parallelism: no delay, and a minibatch of each worker in an update (PipeDream, 2.1)."""
PACI_MICROBATCHES = 4
FIRST_SHARE = 5  # 2BW with synchronous training first has it for one in so many of the updates
ANNEALED_SHARE = 4
"""PipeMare's K is one in so many of the updates, as of the first phase of its ResNets (4.1)."""


@dataclass(frozen=True)
class DelayedMethod:
    """A method of the sweep."""

    equation: str  # the oracle's name of it
    schedule: Callable[..., Schedule]  # of so many stages, for the engine
    stages: int = 0  # if its delay does not depend on the pipeline's depth; 0: the depth
    microbatches: int = 1  # of a batch
    sync_share: int = 0  # of the updates one in so many is synchronous at first; 0: none
    mitigation: Callable[[int], staleness.Mitigation] | None = None  # of a training's updates
    optimizers: tuple[str, ...] = ()  # it is defined for; empty: all

    def depth(self, stages: int) -> int:
        """Return the stages (data parallelism: workers) to train with, to learn what so many do."""
        return self.stages or stages

    def trained(self, stages: int, updates: int) -> Schedule:
        """Return the schedule of a training of so many updates."""
        if not self.sync_share:
            return self.schedule(stages)
        return self.schedule(stages, flush_after=range(updates // self.sync_share))

    def mitigated(self, rule: Callable[[], staleness.Mitigation], *only: str) -> "DelayedMethod":
        """Return the method with a rule, defined ``only`` for some optimizers."""
        return replace(self, mitigation=lambda updates: rule(), optimizers=only)


_SEQUENTIAL = partial(schedules.flush, microbatches=1)
_PIPEDREAM = DelayedMethod("pipedream", schedules.pipedream)
_VERTICAL = partial(schedules.pipedream, vertical_sync=True)
_NO_STASHING = DelayedMethod("pipedream_no_stashing", partial(schedules.pipedream, stashing=False))
_TWO_BW = DelayedMethod("2bw", partial(schedules.two_bw, microbatches=2), 2, 2)
_PACI = partial(schedules.paci, microbatches=PACI_MICROBATCHES)
_PREDICTED = ("sgd", "adamw")

METHODS: Mapping[str, DelayedMethod] = {
    SYNC: DelayedMethod("sequential", _SEQUENTIAL, stages=1),
    BSP: DelayedMethod("sequential", _SEQUENTIAL),
    "2bw": _TWO_BW,
    "pipedream": _PIPEDREAM,
    "vertical-sync": DelayedMethod("pipedream_vertical_sync", _VERTICAL),
    "no-stashing": _NO_STASHING,
    "spectrain": _NO_STASHING.mitigated(staleness.SpecTrain, *_PREDICTED),
    "pipeoptim": _NO_STASHING.mitigated(staleness.PipeOptim, *_PREDICTED),
    "pipemare": replace(
        _NO_STASHING, mitigation=lambda updates: staleness.PipeMare(updates // ANNEALED_SHARE)
    ),
    "gap-aware": _PIPEDREAM.mitigated(staleness.GapAware),
    "paci": DelayedMethod("paci", _PACI, microbatches=PACI_MICROBATCHES),
    "2bw-ahead": _TWO_BW.mitigated(staleness.Ahead, *_PREDICTED),
    "2bw-feedback": _TWO_BW.mitigated(staleness.ErrorFeedback),
    "2bw-sync-first": replace(_TWO_BW, sync_share=FIRST_SHARE),
}
"""By name."""


WARM_UP = 0.1  # share of the updates


class MuonAndAdamW(Optimizer):
    """Muon for the hidden matrices, AdamW for all else (Jordan et al., 2024), at one rate.

    Muon's steps are as large as AdamW's (``match_rms_adamw``: Liu et al., 2025, arXiv 2502.16982),
    so that one rate fits both.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, ends: frozenset[int]) -> None:
        hidden = [p for p in parameters if p.dim() == 2 and not ends.intersection(p.shape)]
        others = [p for p in parameters if not any(p is each for each in hidden)]
        self._parts: list[tuple[str, Optimizer]] = []
        if hidden:
            muon = Muon(hidden, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            self._parts.append(("ns_steps", muon))
        if others:
            self._parts.append(("betas", AdamW(others, lr=lr, weight_decay=0.0)))
        groups = [group for _, part in self._parts for group in part.param_groups]
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for option, part in self._parts:
            # Whoever moves weights and state of an optimizer, as an engine does, moves these ones.
            part.param_groups = [group for group in self.param_groups if option in group]
            part.state = self.state
            part.step()


OPTIMIZERS: Mapping[str, Callable[[list[nn.Parameter], float, frozenset[int]], Optimizer]] = {
    "sgd": lambda own, lr, _: SGD(own, lr, momentum=0.9),
    "adamw": lambda own, lr, _: AdamW(own, lr, weight_decay=0.0),
    "muon": MuonAndAdamW,
    "nadam": lambda own, lr, _: staleness.nesterov(lr, weight_decay=0.0)(own),
    "rotated-adam": lambda own, lr, _: staleness.BasisRotation(own, lr),
}
"""By name, of a stage's parameters, the rate, and the network's outer sizes; none has weight decay,
which would be one more thing to tune.  The last two were made for asynchronous pipelines."""

MIDDLE = dict.fromkeys(OPTIMIZERS, -8) | {"sgd": -4}
"""Of the rates that are tried first, each twice the one before: the power of two."""


def scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
    return LambdaLR(optimizer, lambda update: share_of_rate(update, updates, WARM_UP))
