"""What takes time, before any is timed: tasks, forwards that run again, messages, what is added."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Paths
from pipekit.schedules import OPS, Op, Payload, Schedule
from pipekit.schedules.clock import Need
from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.lowering.lower import batch_ends
from pipekit.schedules.lowering.steps import runs_again
from pipekit.schedules.lowering.weight_slots import slots_of
from pipekit.simulation.costs import Costs, StageCosts, skips_of, ties_of

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float64]
_ACTIVATION, _GRADIENT = Payload.ACTIVATION.value, Payload.GRADIENT.value
WEIGHTS = "weights"
"""The purpose of what is sent of the weights' gradients."""


class Loads(NamedTuple):
    """Of each task, by its number in the schedule's graph."""

    seconds: Seconds  # that it computes; a forward that runs again before it is not in them
    again: Seconds  # those of a forward that runs again before it; NaN if none does
    times: Seconds  # how many times the seconds of the profile those are


class Times(NamedTuple):
    """What happened when, in seconds."""

    starts: Seconds  # of each task, by its number, when it began to compute
    ends: Seconds  # likewise, when it had computed
    again: Seconds  # likewise, when the forward that runs again before it began, or NaN
    transfers: pd.DataFrame  # as in :attr:`pipekit.traces.Trace.transfers`


class Route(NamedTuple):
    """What the tasks of one stage send of one payload to those of another."""

    # an activation, or its gradient; that of weights that stages share goes with it
    payload: Payload
    source: int  # the stage that sends
    destination: int  # the stage that receives
    size: float  # bytes of a microbatch
    purpose: str  # as in :attr:`pipekit.traces.Trace.transfers`


def loads(
    schedule: Schedule, costs: Sequence[StageCosts], given: Costs, cluster: Cluster | None = None
) -> Loads:
    """Return what every task takes.

    An update that writes another weight slot than the newest version's copies the weights first.
    """
    graph, task = schedule.dependencies, schedule.dependencies.columns
    times = np.ones(len(graph.tasks))
    for worker, factor in given.workers.items():
        times[task.worker == worker] *= factor
    for microbatch, factor in given.microbatches.items():
        its = task.microbatch // schedule.chunks == microbatch
        times[its & task.whose(lambda op: op.is_pass)] *= factor
    profiled = np.zeros((len(OPS), len(costs)))
    for place in np.unique(task.op).tolist():
        op = OPS[place]
        profiled[place] = [given.seconds(op, stage, cost) for stage, cost in enumerate(costs)]
    if given.chunks:
        if len(given.chunks) != schedule.chunks:
            raise ValueError(
                f"Costs(chunks=...) has {len(given.chunks)} factors, and {schedule.title} has "
                f"{schedule.chunks} chunks a microbatch: give one for each"
            )
        times *= np.array(given.chunks)[task.microbatch % schedule.chunks]
    seconds = profiled[task.op, task.stage] * times
    if cluster:
        _time_transfers(seconds, graph, costs, given, cluster)
    if given.tasks:
        for number, (op, stage, microbatch, _) in enumerate(graph.tasks):
            key = graph.worker_of[number], op, stage, microbatch
            if key in given.tasks:
                took = profiled[task.op[number], stage]
                seconds[number] = given.tasks[key]
                times[number] = seconds[number] / took if took else 1.0
    run_again = np.flatnonzero(_run_again(schedule, costs))
    again = np.full(len(seconds), np.nan)
    for number in run_again.tolist():
        _, stage, microbatch, _ = graph.tasks[number]
        again[number] = seconds[graph.row(Op.FORWARD, stage)[microbatch]]
    copies = any(cost.whole.copy_s for cost in costs)
    slots = [slot for each in slots_of(schedule) for slot in each.slots] if copies else []
    newest: dict[tuple[int, int], int] = {}  # the slot, by worker and stage
    for number in graph.of(lambda op: not op.is_pass) if copies else ():
        stage = graph.tasks[number].stage
        here = graph.worker_of[number], stage
        if slots[number] != newest.get(here, 0):
            seconds[number] += costs[stage].whole.copy_s
        newest[here] = slots[number]
    return Loads(seconds, again, times)


def _time_transfers(
    seconds: Seconds,
    graph: Dependencies,
    costs: Sequence[StageCosts],
    given: Costs,
    cluster: Cluster,
) -> None:
    """Note how long transfers to other workers take that nothing else holds up on their links."""
    paths = Paths(cluster)
    for number in graph.of(lambda op: op.moves and op.peer is not None and op not in given.ops):
        op, stage, *_ = graph.tasks[number]
        assert op.moves
        assert op.peer is not None
        ends = graph.worker_of[number], op.peer
        path = paths.message(*(ends if op.leaves else reversed(ends)))
        size = path.flow * costs[stage].item_bytes(op.moves)
        seconds[number] = path.latency_s + size / path.alone


def _run_again(schedule: Schedule, costs: Sequence[StageCosts]) -> NDArray[np.bool_]:
    graph = schedule.dependencies
    found = np.zeros(len(graph.tasks), np.bool_)
    if all(cost.recompute == "never" for cost in costs):
        return found
    at_a_place = {task[1:3] for task in graph.tasks if task.op is Op.RECOMPUTE}
    for first, tasks in zip(graph.first, schedule.workers, strict=False):
        last_of_batches = batch_ends(tasks, schedule)
        for number, (op, stage, microbatch, _) in enumerate(tasks, first):
            if op.sends is Payload.GRADIENT and (stage, microbatch) not in at_a_place:
                ends_batch = (stage, microbatch) in last_of_batches
                found[number] = runs_again(costs[stage].recompute, ends_batch)
    return found


def routes(schedule: Schedule, costs: Sequence[StageCosts]) -> list[Route]:
    """Return what stages send to one another: to neighbours, over skip connections, and for ties.

    Of weights that stages share, each one with a copy sends a gradient to the one before.
    """
    pairs = [(stage, stage + 1, costs[stage].whole.output_bytes) for stage in range(len(costs) - 1)]
    pairs += [(skip.source, skip.destination, skip.bytes) for skip in skips_of(costs)]
    found = []
    for early, late, size in pairs:
        found.append(Route(Payload.ACTIVATION, early, late, size, _ACTIVATION))
        if schedule.trains:
            found.append(Route(Payload.GRADIENT, late, early, size, _GRADIENT))
    for tie in ties_of(costs) if schedule.trains else ():
        for early, late in pairwise(tie.layers):
            found.append(Route(Payload.GRADIENT, late, early, tie.bytes, WEIGHTS))
    return found


class Messages(NamedTuple):
    """All messages between workers in the order of the tasks that send them, an entry each."""

    route: Numbers  # its number among :func:`pipekit.simulation.loads.routes`
    microbatch: Numbers  # that it is of
    sender: Numbers  # the number of the task that sends it
    receiver: Numbers  # likewise
    source: Numbers  # the workers of these
    destination: Numbers
    size: Seconds  # in bytes


class GradientSum(NamedTuple):
    """A sum of gradients over workers."""

    members: tuple[int, ...]  # the workers
    bytes: float  # of the gradients
    stage: int  # that has the weights; of several, the first
    microbatch: int  # the last that is summed
    # sender, receiver and bytes; empty: as an all-reduce sends them
    sent: Sequence[tuple[int, int, float]] = ()


class Activities:
    """What takes time, by number: tasks first, then what is added.

    ``lists`` are those of each worker, and of each stream beside it; each activity has ``seconds``
    and ``needs``.  ``messages`` are of each microbatch and route of ``sent``, ``sums`` by number.
    """

    def __init__(self, schedule: Schedule, costs: Sequence[StageCosts], load: Loads) -> None:
        graph = schedule.dependencies
        self.sent = routes(schedule, costs)
        self.messages = _messages(schedule, self.sent)
        self.seconds: list[float] = load.seconds.tolist()
        self.needs: list[Need] = [()] * len(self.seconds)
        for number, others in graph.others.items():
            self.needs[number] = tuple((n, 0.0) for n in others)
        self.lists: list[list[int]] = [*map(list, graph.lists)]
        self.sums: dict[int, GradientSum] = {}
        self._before = np.full(len(self.seconds), -1)
        repeated = np.flatnonzero(~np.isnan(load.again))
        if len(repeated):
            self._before[repeated] = self.add(load.again[repeated])
            self.put(self._before)

    def add(self, seconds: Seconds, needs: Sequence[Need] = ()) -> range:
        """Add activities, and return their numbers."""
        first = len(self.seconds)
        self.seconds += seconds.tolist()
        self.needs += needs or [()] * len(seconds)
        return range(first, len(self.seconds))

    def add_sum(self, made: GradientSum, needs: Need) -> int:
        """Add a sum, which takes as long as links say, and return its number."""
        (number,) = self.add(np.zeros(1), [needs])
        self.sums[number] = made
        return number

    def put(self, before: Numbers) -> None:
        """Let workers run activities before tasks; -1 where there is none."""
        size = len(before)
        self.lists = [
            [each for n in own for each in ((before[n], n) if n < size else (n,)) if each >= 0]
            for own in self.lists
        ]

    def times(
        self, starts: Sequence[float], ends: Sequence[float], transfers: pd.DataFrame
    ) -> Times:
        """Return when all tasks ran, of all activities' starts and ends."""
        size, began = len(self._before), np.array(starts)
        again = np.where(self._before >= 0, began[self._before], np.nan)
        return Times(began[:size], np.array(ends[:size]), again, transfers)

    def transfers(self, left: Seconds, came: Seconds, leaves: Seconds) -> pd.DataFrame:
        """Return the messages as a trace has them, in the order in which they could leave."""
        messages, sent = self.messages, self.sent
        order = np.lexsort((messages.source, leaves))
        purposes = np.array([route.purpose for route in sent], object)
        columns = {
            "source": messages.source,
            "destination": messages.destination,
            "purpose": purposes[messages.route],
            "stage": np.array([route.source for route in sent], np.int64)[messages.route],
            "microbatch": messages.microbatch,
            "start_s": left,
            "end_s": came,
            "bytes": messages.size,
        }
        return pd.DataFrame({name: column[order] for name, column in columns.items()})


def _messages(schedule: Schedule, sent: Sequence[Route]) -> Messages:
    graph = schedule.dependencies
    worker_of = graph.columns.worker
    found = [np.empty((4, 0), np.int64)]
    for number, route in enumerate(sent):
        senders = np.array(graph.senders[route.payload][route.source])
        receivers = np.array(graph.receivers[route.payload][route.destination])
        away = np.flatnonzero(worker_of[senders] != worker_of[receivers])
        found.append(np.array([np.full(len(away), number), away, senders[away], receivers[away]]))
    every = np.concatenate(found, axis=1)
    route, microbatch, sender, receiver = every[:, np.argsort(every[2], kind="stable")]
    sizes = np.array([float(route.size) for route in sent])
    workers = worker_of[sender], worker_of[receiver]
    return Messages(route, microbatch, sender, receiver, *workers, sizes[route])
