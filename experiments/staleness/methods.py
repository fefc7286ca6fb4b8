"""The asynchronous methods of the sweep, each as the oracle's equation and as a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from pipekit import schedules, staleness
from pipekit.schedules import Schedule

SYNC = "flush"
"""No delay: what all others are compared with."""
PACI_MICROBATCHES = 4
FIRST_SHARE = 5
"""2BW with synchronous training first has it for one in so many of the updates."""
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
        """Return the stages to train with, to learn what a pipeline of so many does."""
        return self.stages or stages

    def flush_after(self, updates: int) -> range:
        """Return the batches after which the pipeline drains in a training of so many updates."""
        return range(updates // self.sync_share) if self.sync_share else range(0)

    def trained(self, stages: int, updates: int) -> Schedule:
        """Return the schedule of a training of so many updates."""
        flushes = self.flush_after(updates)
        return self.schedule(stages, flush_after=flushes) if flushes else self.schedule(stages)

    def mitigated(self, rule: Callable[[], staleness.Mitigation], *only: str) -> "DelayedMethod":
        """Return the method with a rule, defined ``only`` for some optimizers."""
        return replace(self, mitigation=lambda updates: rule(), optimizers=only)


_PIPEDREAM = DelayedMethod("pipedream", schedules.pipedream)
_VERTICAL = partial(schedules.pipedream, vertical_sync=True)
_NO_STASHING = DelayedMethod("pipedream_no_stashing", partial(schedules.pipedream, stashing=False))
_TWO_BW = DelayedMethod("2bw", partial(schedules.two_bw, microbatches=2), 2, 2)
_PACI = partial(schedules.paci, microbatches=PACI_MICROBATCHES)
_PREDICTED = ("sgd", "adamw")

METHODS: Mapping[str, DelayedMethod] = MappingProxyType(
    {
        SYNC: DelayedMethod("sequential", partial(schedules.flush, microbatches=1), stages=1),
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
)
"""By name."""
