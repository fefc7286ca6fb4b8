"""The asynchronous methods of the sweep, each as the oracle's equation and as a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from pipekit import schedules
from pipekit.schedules import Schedule

SYNC = "flush"
"""No delay: what all others are compared with."""


@dataclass(frozen=True)
class DelayedMethod:
    """A method of the sweep.

    Attributes:
        equation: the oracle's name of it.
        schedule: from stages and batches to what the engine runs.
        stages: as many whatever the pipeline's depth, if its delay does not depend on that; 0: the
            depth.
        microbatches: of a batch.
    """

    equation: str
    schedule: Callable[[int, int], Schedule]
    stages: int = 0
    microbatches: int = 1

    def depth(self, stages: int) -> int:
        """Return the stages to train with, to learn what a pipeline of so many does."""
        return self.stages or stages


METHODS: Mapping[str, DelayedMethod] = MappingProxyType(
    {
        SYNC: DelayedMethod("sequential", lambda n, b: schedules.flush(n, 1, b), stages=1),
        "2bw": DelayedMethod("2bw", lambda n, b: schedules.two_bw(n, 2, b), 2, 2),
        "pipedream": DelayedMethod("pipedream", schedules.pipedream),
        "vertical-sync": DelayedMethod(
            "pipedream_vertical_sync", partial(schedules.pipedream, vertical_sync=True)
        ),
        "no-stashing": DelayedMethod(
            "pipedream_no_stashing", partial(schedules.pipedream, stashing=False)
        ),
    }
)
"""By name."""
