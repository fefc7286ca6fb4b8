"""The optimizers whose patience with late gradients is compared, as a recipe of one number.

All have the same schedule of the learning rate: a linear warm-up over a tenth of the updates, then
a linear decay to nothing.  Gradients are not clipped: a common norm would make the stages of an
asynchronous pipeline wait for one another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from pipekit import staleness

WARM_UP = 0.1
"""Share of the updates."""


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
        """Take a step of both."""
        for option, part in self._parts:
            # Whoever moves weights and state of an optimizer, as an engine does, moves these ones.
            part.param_groups = [group for group in self.param_groups if option in group]
            part.state = self.state
            part.step()


@dataclass(frozen=True)
class OptimizerRecipe:
    """An optimizer of a sweep: of a stage's parameters, the rate, and the network's outer sizes."""

    make: Callable[[list[nn.Parameter], float, frozenset[int]], Optimizer]
    highest: int = -6  # power of two of the rates that are tried first, each twice the one before
    states: float = 2  # tensors of a parameter's size that it keeps of each, for simulations

    @property
    def first_rates(self) -> list[float]:
        """The rates that are tried first."""
        return [2.0**power for power in range(self.highest - 4, self.highest + 1)]


OPTIMIZERS: Mapping[str, OptimizerRecipe] = MappingProxyType(
    {
        "sgd": OptimizerRecipe(lambda own, lr, _: SGD(own, lr, momentum=0.9), -2, 1),
        "adamw": OptimizerRecipe(lambda own, lr, _: AdamW(own, lr, weight_decay=0.0)),
        "muon": OptimizerRecipe(MuonAndAdamW, states=1),
        "nadam": OptimizerRecipe(lambda own, lr, _: staleness.nesterov(lr, weight_decay=0.0)(own)),
        "rotated-adam": OptimizerRecipe(lambda own, lr, _: staleness.BasisRotation(own, lr)),
    }
)
"""By name; none has weight decay, which would be one more thing to tune.  The last two were made
for asynchronous pipelines."""


def scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
    """Return what sets the learning rate, stepped after each of so many updates."""
    warm_up = max(1, round(WARM_UP * updates))

    def share(update: int) -> float:
        return min((update + 1) / warm_up, (updates - update) / max(1, updates - warm_up))

    return LambdaLR(optimizer, share)
