"""How long things take here: CPU seconds of a worker's own thread, and calls timed in turns."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.datasets import Batch
from pipekit.engine import Observer, Pipeline, Watch
from pipekit.schedules import Step
from pipekit.trees import Tree

BATCHES = 3
"""Of a run that is timed."""

K = TypeVar("K", bound=str)


class OwnSeconds(Observer):
    """Adds up the CPU time of a single worker's computing by activity, in ``seconds``."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._start = 0.0

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        """Mark the start."""
        self._start = time.thread_time()

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """Count what the thread was charged for."""
        self.seconds[activity] += time.thread_time() - self._start


def own_activities(
    pairs: Mapping[K, tuple[Pipeline, Batch]], rounds: int
) -> list[dict[K, dict[str, float]]]:
    """Return each pipeline's seconds of a batch by activity, in every round (measured).

    Pipelines must have a single worker, whose operators have a single thread.  They train in turn,
    :data:`BATCHES` batches each round, as shared caches and a core's clock speed still count.
    """

    def seconds(pipeline: Pipeline, batch: Batch) -> dict[str, float]:
        own = OwnSeconds()
        pipeline.train([batch] * BATCHES, watch=Watch(observers=[own]))
        return {activity: taken / BATCHES for activity, taken in own.seconds.items()}

    return [{name: seconds(*pair) for name, pair in pairs.items()} for _ in range(rounds)]


def own_seconds(pairs: Mapping[K, tuple[Pipeline, Batch]], rounds: int) -> pd.DataFrame:
    """Return the same, all activities together: a row a round and a column a pipeline."""
    each = own_activities(pairs, rounds)
    return pd.DataFrame({name: sum(own.values()) for name, own in one.items()} for one in each)


def in_turns(
    runs: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] | None = None
) -> NDArray[np.float64]:
    """Return the seconds that each of some calls took, [rounds, calls].

    They take turns, as a shared machine is not always equally fast; by default a thread's own
    seconds count, without what other programs take of its core.
    """
    now = clock or time.thread_time

    def seconds(run: Callable[[], object]) -> float:
        start = now()
        run()
        return now() - start

    return np.array([[seconds(run) for run in runs] for _ in range(rounds)])
