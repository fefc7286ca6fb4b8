"""One schedule's timelines in three ways, questions to several traces, and seconds measured."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD

from pipekit.datasets import Batch
from pipekit.emulation import emulate
from pipekit.engine import Execution, Observer, Pipeline, Watch
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Step
from pipekit.schedules.clock import PAPER_SLOTS
from pipekit.simulation import simulate
from pipekit.traces import Trace
from pipekit.traces.memory import Memory
from pipekit.trees import Tree

EQUAL_SLOTS: Mapping[Op, float] = {Op.FORWARD: 1, Op.BACKWARD: 1, Op.UPDATE: 0}
"""Both passes take one time unit, as in GPipe's Figure 2 and PipeDream's Figures 3 and 8."""


class ThreeWays(NamedTuple):
    """One schedule's traces: in slots (exact), in seconds (simulated), really run (emulated)."""

    slots: Trace
    simulated: Trace
    emulated: Trace

    @property
    def titles(self) -> list[str]:
        return [f"{self.slots.name}, {what}" for what in ("the table", "in seconds", "run")]


def run_three_ways(
    schedule: Schedule, profile: Profile, slots: Mapping[Op, float] = PAPER_SLOTS
) -> ThreeWays:
    """Return a schedule in slots (a backward takes two by default), simulated and emulated."""
    return ThreeWays(
        Trace.from_schedule(schedule, slots),
        simulate(schedule, profile),
        emulate(schedule, profile).trace,
    )


def memory_of(trace: Trace) -> Memory:
    """Return what lay in the workers' memory; a training's trace has it with ``memory=True``."""
    if trace.memory is None:
        raise ValueError(f"the memory of {trace.name} was not followed: train with memory=True")
    return trace.memory


ONLY_BYTES: Mapping[str, Any] = {
    "optimizer": partial(SGD, lr=0.01),
    "loss": lambda output, _: output.square().mean(),
}
"""Arguments of a pipeline of which only bytes are looked at; targets are not read."""


def on_cpus(
    model: nn.Sequential, schedule: Schedule, recompute: Recompute | None = None, **how: Any
) -> Pipeline:
    """Return a pipeline whose workers are on CPUs; ``how`` are its further arguments."""
    execution = Execution(devices=["cpu"] * schedule.stages, recompute=recompute)
    return Pipeline(model, schedule, execution=execution, **how)


def trained_memory(pipeline: Pipeline, batches: Sequence[Batch]) -> Memory:
    """Return what lay in the workers' memory in a training (measured)."""
    return memory_of(pipeline.train(batches, watch=Watch(memory=True)).trace)


def busy_s(events: pd.DataFrame, start: float = -math.inf, end: float = math.inf) -> float:
    """Return how much of some events' time lies between two times, in the trace's unit."""
    clipped = events["end_s"].clip(start, end) - events["start_s"].clip(start, end)
    return float(clipped.sum())


LOOKS = {"activation": "FORWARD", "gradient": "BACKWARD"}  # of messages: the colour of their maker


def with_links(trace: Trace, transfers: pd.DataFrame, sent: int, received: int) -> Trace:
    """Return a trace with messages in rows behind each worker's own, the first of them 1."""
    each = 1 + max(sent, received)
    rows = [trace.frame.assign(worker=each * trace.frame["worker"])]
    for side, row in (("source", sent), ("destination", received)):
        drawn = {"op": transfers["purpose"].map(LOOKS), "version": 0}
        rows.append(transfers.assign(worker=each * transfers[side] + row, **drawn))
    frame = pd.concat(rows, ignore_index=True)[trace.frame.columns]
    frame = frame.sort_values(["worker", "start_s"])
    return replace(trace, frame=frame, workers=each * trace.workers, transfers=None, memory=None)


def mean_interval(ends: Sequence[float], first: int, last: int) -> float:
    """Return the mean time from one end to the next, from ``ends[first]`` to ``ends[last]``."""
    return float(ends[last] - ends[first]) / (last - first)


BATCHES = 3  # of a run that is timed

K = TypeVar("K", bound=str)


class OwnSeconds(Observer):
    """Adds up the CPU time of a single worker's computing by activity, in ``seconds``."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._start = 0.0

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._start = time.thread_time()

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self.seconds[activity] += time.thread_time() - self._start


def own_activities(pairs: Mapping[K, tuple[Pipeline, Batch]], rounds: int) -> pd.DataFrame:
    """Return seconds of a batch (measured): a row a round, a column a pipeline and activity.

    Pipelines have a single worker. They train in turn, :data:`BATCHES` batches each round.
    """

    def seconds(pipeline: Pipeline, batch: Batch) -> "pd.Series[float]":
        own = OwnSeconds()
        pipeline.train([batch] * BATCHES, watch=Watch(observers=[own]))
        return pd.Series(own.seconds) / BATCHES

    return pd.DataFrame(
        pd.concat({name: seconds(*pair) for name, pair in pairs.items()}) for _ in range(rounds)
    )


def own_seconds(pairs: Mapping[K, tuple[Pipeline, Batch]], rounds: int) -> pd.DataFrame:
    """Return the same, all activities together: a row a round and a column a pipeline."""
    return own_activities(pairs, rounds).T.groupby(level=0, sort=False).sum().T


def in_turns(runs: Sequence[Callable[[], object]], rounds: int) -> NDArray[np.float64]:
    """Return the CPU seconds that each of some calls took, taking turns: [rounds, calls]."""

    def seconds(run: Callable[[], object]) -> float:
        start = time.thread_time()
        run()
        return time.thread_time() - start

    return np.array([[seconds(run) for run in runs] for _ in range(rounds)])
