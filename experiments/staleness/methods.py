"""The asynchronous methods of the sweep, each as the oracle's equation and as a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """A method of the sweep.

    Attributes:
        equation: the oracle's name of it.
        schedule: from stages to what the engine runs; of a method that drains, also from
            ``flush_after``.
        stages: as many whatever the pipeline's depth, if its delay does not depend on that; 0: the
            depth.
        microbatches: of a batch.
        mitigation: from the updates of a training to what is done about stale weights, or None.
        flush_after: from the updates to the batches after which the pipeline drains.
        optimizers: it is defined for; empty: all.
    """

    equation: str
    schedule: Callable[..., Schedule]
    stages: int = 0
    microbatches: int = 1
    mitigation: Callable[[int], staleness.Mitigation] | None = None
    flush_after: Callable[[int], range] = lambda updates: range(0)
    optimizers: tuple[str, ...] = ()

    def depth(self, stages: int) -> int:
        """Return the stages to train with, to learn what a pipeline of so many does."""
        return self.stages or stages

    def trained(self, stages: int, updates: int) -> Schedule:
        """Return the schedule of a training of so many updates."""
        flushes = self.flush_after(updates)
        return self.schedule(stages, flush_after=flushes) if flushes else self.schedule(stages)


def _first(updates: int) -> range:
    return range(updates // FIRST_SHARE)


_no_stashing = partial(schedules.pipedream, stashing=False)
_two_bw = partial(schedules.two_bw, microbatches=2)
_PREDICTED = ("sgd", "adamw")

METHODS: Mapping[str, DelayedMethod] = MappingProxyType(
    {
        SYNC: DelayedMethod("sequential", partial(schedules.flush, microbatches=1), stages=1),
        "2bw": DelayedMethod("2bw", _two_bw, 2, 2),
        "pipedream": DelayedMethod("pipedream", schedules.pipedream),
        "vertical-sync": DelayedMethod(
            "pipedream_vertical_sync", partial(schedules.pipedream, vertical_sync=True)
        ),
        "no-stashing": DelayedMethod("pipedream_no_stashing", _no_stashing),
        "spectrain": DelayedMethod(
            "pipedream_no_stashing",
            _no_stashing,
            mitigation=lambda updates: staleness.SpecTrain(),
            optimizers=_PREDICTED,
        ),
        "pipeoptim": DelayedMethod(
            "pipedream_no_stashing",
            _no_stashing,
            mitigation=lambda updates: staleness.PipeOptim(),
            optimizers=_PREDICTED,
        ),
        "pipemare": DelayedMethod(
            "pipedream_no_stashing",
            _no_stashing,
            mitigation=lambda updates: staleness.PipeMare(updates // ANNEALED_SHARE),
        ),
        "gap-aware": DelayedMethod(
            "pipedream", schedules.pipedream, mitigation=lambda updates: staleness.GapAware()
        ),
        "paci": DelayedMethod(
            "paci",
            partial(schedules.paci, microbatches=PACI_MICROBATCHES),
            microbatches=PACI_MICROBATCHES,
        ),
        "2bw-ahead": DelayedMethod(
            "2bw",
            _two_bw,
            2,
            2,
            mitigation=lambda updates: staleness.Ahead(),
            optimizers=_PREDICTED,
        ),
        "2bw-feedback": DelayedMethod(
            "2bw",
            _two_bw,
            2,
            2,
            mitigation=lambda updates: staleness.ErrorFeedback(),
        ),
        "2bw-sync-first": DelayedMethod(
            "2bw",
            _two_bw,
            2,
            2,
            flush_after=_first,
        ),
    }
)
"""By name."""
