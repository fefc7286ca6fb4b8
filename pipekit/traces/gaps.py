"""Why a worker computes nothing: each gap between its events, its cause, and whom it waits for."""

import math
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from operator import itemgetter
from typing import NamedTuple

import pandas as pd

from pipekit.schedules import Op
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.ops import Item, Payload
from pipekit.traces.event_graph import EventGraph

GAPS = ["worker", "start_s", "end_s", "cause", "waits_for", "waits_for_worker", "before"]
ROWS = ["waits_for_row", "before_row"]  # in the trace's frame; -1 where there is none
Gap = tuple[int, float, float, "Cause", int, int]
"""Worker, from and to when, why, and the numbers of the event waited for and of the one behind."""
_LEAST = 1e-9
"""Gaps shorter than this part of the run are rounding."""


class Cause(Enum):
    """Why a worker computes nothing."""

    WARM_UP = "warm-up"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    TRANSFER = "transfer"
    SUM = "sum"
    GLOBAL_STOP = "global stop"
    OTHER = "other"
    DRAIN = "drain"


CAUSES = {
    Cause.WARM_UP: "the first activation has not reached it yet",
    Cause.ACTIVATION: "the stage before has not computed the activation yet",
    Cause.GRADIENT: "the stage behind has not computed the gradient yet",
    Cause.TRANSFER: "what it needs is computed, and on its way",
    Cause.SUM: "other workers have not added their gradients to the sum yet",
    Cause.GLOBAL_STOP: "stages update together: clipped gradients, scaled losses or shared weights",
    Cause.OTHER: "all that it needs is there: set-up, or the engine's own time",
    Cause.DRAIN: "it has nothing left to do",
}
"""Each cause in words, in the order of legends."""


class _Event(NamedTuple):
    """An event of a trace, or a task of another stream."""

    op: Op
    worker: int
    stage: int
    microbatch: int
    version: int
    start: float
    end: float
    row: int  # in the trace's frame; -1 for tasks of other streams

    @property
    def label(self) -> str:
        return f"{self.op.letter}{self.microbatch} of stage {self.stage}"

    def key(self, item: Item) -> tuple[Item, int, int, int]:
        """Return the item's place: worker, stage and microbatch."""
        microbatch = self.microbatch if item.each == "microbatch" else NOTHING
        return item, self.worker, self.stage, microbatch


def gaps(
    graph: EventGraph, beside: pd.DataFrame, workers: int, span_s: tuple[float, float]
) -> pd.DataFrame:
    """Return when workers compute nothing between the two ends of a run, and why.

    ``beside`` has the tasks of other streams; see :meth:`pipekit.traces.Trace.gaps`.
    """
    run = _TracedRun(graph, beside, span_s)
    about = [(event.label, event.worker, event.row) for event in run.events]
    about.append(("", NOTHING, NOTHING))  # NOTHING is the last place
    found = []
    for each in range(workers):
        for *place, cause, source, before in run.gaps_of(each):
            (waits_for, its_worker, its_row), (label, _, row) = about[source], about[before]
            found.append((*place, cause.value, waits_for, its_worker, label, its_row, row))
    return pd.DataFrame(found, columns=[*GAPS, *ROWS])


def describe_gaps(found: pd.DataFrame, makespan_s: float, workers: int) -> str:
    """Return in words what part of all workers' time each cause takes that :func:`gaps` found."""
    seconds = (found["end_s"] - found["start_s"]).groupby(found["cause"]).sum()
    total = makespan_s * workers
    shares = {cause.value: 100 * seconds.get(cause.value, 0.0) / total for cause in CAUSES if total}
    told = [f"{share:.1f} % {cause}" for cause, share in shares.items() if share >= 0.05]
    return "idle: " + ", ".join(told) if told else "never idle"


class _TracedRun:
    """A trace's events as lists, each in an order in which they can run."""

    def __init__(
        self, graph: EventGraph, beside: pd.DataFrame, span_s: tuple[float, float]
    ) -> None:
        self.needs = graph.needs
        self.first, self.last = span_s
        self.least = _LEAST * (self.last - self.first)
        names = "worker", "stage", "microbatch", "version", "start_s", "end_s"
        columns = (graph.frame[name].tolist() for name in names)
        ops = map(Op.named, graph.frame["op"])
        self.events = [*map(_Event, ops, *columns, graph.rows)]
        self.own: dict[int, list[int]] = defaultdict(list)
        updates: dict[int, list[int]] = defaultdict(list)  # by version
        for number, event in enumerate(self.events):
            self.own[event.worker].append(number)
            if event.op is Op.UPDATE:
                updates[event.version].append(number)
        # Of each update that all stages make together the last pass that they wait for.
        self.stops: dict[int, int] = {}
        for made in updates.values():
            if len({self.events[number].stage for number in made}) > 1:
                passes = (need for number in made for need in self.needs[number])
                last = max(passes, key=self.end)
                if all(self.events[n].start >= self.end(last) - self.least for n in made):
                    self.stops |= dict.fromkeys(made, last)
        # What tasks of other streams give: each with its number and when it is there.
        self.given: dict[tuple[Item, int, int, int], list[tuple[int, float]]] = defaultdict(list)
        for row in beside.itertuples(index=False):
            op = Op.named(row.purpose.upper())
            worker = row.source if op.leaves else row.destination
            about = row.stage, row.microbatch, NOTHING, row.start_s, row.end_s, NOTHING
            event = _Event(op, worker, *about)
            for item in op.gives:
                self.given[event.key(item)].append((len(self.events), row.end_s))
            self.events.append(event)

    def end(self, number: int) -> float:
        """Return when an event ends."""
        return self.events[number].end

    def gaps_of(self, worker: int) -> Iterator[Gap]:
        events = self.events
        own = sorted(self.own[worker], key=lambda number: events[number].start)
        until = self.first
        for place, number in enumerate(own):
            start = events[number].start
            if start > until + self.least:
                # Passes that run together wait for what either of them needs.
                together = [n for n in own[place : place + 2] if events[n].start == start]
                needs = [need for n in together for need in self.needs[n]]
                latest = max(needs, key=self.end, default=NOTHING)
                yield from self._before(number, until, latest, is_first=not place)
            until = max(until, events[number].end)
        if self.last > until + self.least:
            yield worker, until, self.last, Cause.DRAIN, NOTHING, NOTHING

    def _before(self, number: int, until: float, latest: int, is_first: bool) -> Iterator[Gap]:
        """Yield the gap before an event: until what it needs is computed, and until it begins."""
        event = self.events[number]
        worker, op, start = event.worker, event.op, event.start
        # The last task of another stream that gives what the event needs.
        keys = map(event.key, (*op.needs, *op.takes))
        given = (each for key in keys for each in self.given.get(key, ()))
        able = (each for each in given if each[1] <= start + self.least)
        moved, there = max(able, key=itemgetter(1), default=(NOTHING, -math.inf))
        if is_first and (latest != NOTHING or moved == NOTHING):
            yield worker, until, start, Cause.WARM_UP, latest, number
            return
        computed = until
        if latest != NOTHING and self.end(latest) > until + self.least:
            computed = min(self.end(latest), start)
            passed = Cause.ACTIVATION if op.receives is Payload.ACTIVATION else Cause.GRADIENT
            yield worker, until, computed, passed if op.is_pass else Cause.SUM, latest, number
        stop = self.stops.get(number, NOTHING)
        if stop != NOTHING and self.end(stop) > computed + self.least:
            yield worker, computed, self.end(stop), Cause.GLOBAL_STOP, stop, number
            computed = self.end(stop)
        late = Cause.SUM if op is Op.UPDATE else Cause.TRANSFER
        if (there := min(there, start)) > computed + self.least:
            yield worker, computed, there, late, moved, number
            computed = there
        if start > computed + self.least:
            if latest != NOTHING and self.events[latest].worker != worker:
                yield worker, computed, start, late, latest, number
            else:
                rest = Cause.OTHER if stop == NOTHING else Cause.GLOBAL_STOP
                yield worker, computed, start, rest, NOTHING, number
