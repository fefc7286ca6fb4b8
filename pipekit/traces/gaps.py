"""Why a worker computes nothing: each gap between its events, its cause, and whom it waits for."""

import math
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from operator import itemgetter

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


def _waiting_for(op: Op) -> Cause:
    """Return what an event of an op waits for until that is computed."""
    if not op.is_pass:
        return Cause.SUM
    return Cause.ACTIVATION if op.receives is Payload.ACTIVATION else Cause.GRADIENT


def gaps(
    graph: EventGraph, beside: pd.DataFrame, workers: int, span_s: tuple[float, float]
) -> pd.DataFrame:
    """Return when workers compute nothing between the two ends of a run, and why.

    ``beside`` has the tasks of other streams; see :meth:`pipekit.traces.Trace.gaps`.
    """
    run = _TracedRun(graph, beside, span_s)
    found = [gap for worker in range(workers) for gap in run.gaps_of(worker)]
    worker, start, end, cause, source, before = zip(*found, strict=True) if found else [()] * 6
    # NOTHING is the last place.
    labels, workers_of = [*run.labels(), ""], [*run.worker, *run.worker_beside, NOTHING]
    rows = [*graph.rows, *[NOTHING] * (1 + len(beside))]
    named = {each: each.value for each in Cause}
    columns = [
        *(worker, start, end),
        [named[each] for each in cause],
        [labels[each] for each in source],
        [workers_of[each] for each in source],
        [labels[each] for each in before],
        [rows[each] for each in source],
        [rows[each] for each in before],
    ]
    return pd.DataFrame(dict(zip([*GAPS, *ROWS], columns, strict=True)))


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
        self.needs, self.rows = graph.needs, graph.rows
        numbers = ["worker", "stage", "microbatch", "version"]
        # Whole numbers may have become floats, where frames were joined.
        self.worker, self.stage, self.microbatch, version = (
            graph.frame[name].astype(int).tolist() for name in numbers
        )
        self.op, self.start, self.end = (
            graph.frame[name].tolist() for name in ("op", "start_s", "end_s")
        )
        self.own: dict[int, list[int]] = defaultdict(list)
        for number, worker in enumerate(self.worker):
            self.own[worker].append(number)
        self.first, self.last = span_s
        self.least = _LEAST * (self.last - self.first)
        self.stops = dict(self._stops(version))
        # What tasks of other streams give, by worker, stage and microbatch: each with its number,
        # behind those of the events, and when it is there.
        self.given: dict[tuple[Item, int, int, int], list[tuple[int, float]]] = defaultdict(list)
        self.beside = [*beside.itertuples(index=False)]
        self.worker_beside = [
            row.source if Op.named(row.purpose.upper()).leaves else row.destination
            for row in self.beside
        ]
        for number, (row, worker) in enumerate(
            zip(self.beside, self.worker_beside, strict=True), len(self.op)
        ):
            for item in Op.named(row.purpose.upper()).gives:
                key = _key(item, worker, row.stage, row.microbatch)
                self.given[key].append((number, row.end_s))

    def _stops(self, version: list[int]) -> Iterator[tuple[int, int]]:
        """Yield each update that all stages make together, and the last pass that they wait for."""
        updates: dict[int, list[int]] = defaultdict(list)
        for number, op in enumerate(self.op):
            if op == Op.UPDATE.name:
                updates[version[number]].append(number)
        for numbers in updates.values():
            if len({self.stage[number] for number in numbers}) > 1:
                passes = (need for number in numbers for need in self.needs[number])
                last = max(passes, key=self.end.__getitem__)
                if all(self.start[n] >= self.end[last] - self.least for n in numbers):
                    yield from ((number, last) for number in numbers)

    def gaps_of(self, worker: int) -> Iterator[Gap]:
        own = sorted(self.own[worker], key=self.start.__getitem__)
        until = self.first
        for place, number in enumerate(own):
            if self.start[number] > until + self.least:
                # Passes that run together wait for what either of them needs.
                together = [
                    n for n in own[place : place + 2] if self.start[n] == self.start[number]
                ]
                needs = [need for n in together for need in self.needs[n]]
                latest = max(needs, key=self.end.__getitem__, default=NOTHING)
                yield from self._before(number, until, latest, is_first=not place)
            until = max(until, self.end[number])
        if self.last > until + self.least:
            yield worker, until, self.last, Cause.DRAIN, NOTHING, NOTHING

    def _before(self, number: int, until: float, latest: int, is_first: bool) -> Iterator[Gap]:
        """Yield the gap before an event: until what it needs is computed, and until it begins."""
        worker, start = self.worker[number], self.start[number]
        moved, there = self._moved(number)
        if is_first and (latest != NOTHING or moved == NOTHING):
            yield worker, until, start, Cause.WARM_UP, latest, number
            return
        computed = until
        if latest != NOTHING and self.end[latest] > until + self.least:
            computed = min(self.end[latest], start)
            yield worker, until, computed, _waiting_for(Op.named(self.op[number])), latest, number
        stop = self.stops.get(number, NOTHING)
        if stop != NOTHING and self.end[stop] > computed + self.least:
            yield worker, computed, self.end[stop], Cause.GLOBAL_STOP, stop, number
            computed = self.end[stop]
        late = Cause.SUM if self.op[number] == Op.UPDATE.name else Cause.TRANSFER
        if there > computed + self.least:
            yield worker, computed, there, late, moved, number
            computed = there
        if start > computed + self.least:
            if latest != NOTHING and self.worker[latest] != worker:
                yield worker, computed, start, late, latest, number
            else:
                rest = Cause.OTHER if stop == NOTHING else Cause.GLOBAL_STOP
                yield worker, computed, start, rest, NOTHING, number

    def _moved(self, number: int) -> tuple[int, float]:
        """Return the last task of another stream that gives what an event needs, and its end."""
        op, place = Op.named(self.op[number]), (self.stage[number], self.microbatch[number])
        keys = (_key(item, self.worker[number], *place) for item in (*op.needs, *op.takes))
        until = self.start[number] + self.least
        found = [each for key in keys for each in self.given.get(key, ()) if each[1] <= until]
        moved, end = max(found, key=itemgetter(1), default=(NOTHING, -math.inf))
        return moved, min(end, self.start[number])

    def labels(self) -> list[str]:
        named = [*zip(self.op, self.microbatch, self.stage, strict=True)]
        named += [(row.purpose.upper(), row.microbatch, row.stage) for row in self.beside]
        return [
            f"{Op.named(op).letter}{microbatch} of stage {stage}" for op, microbatch, stage in named
        ]


def _key(item: Item, worker: int, stage: int, microbatch: int) -> tuple[Item, int, int, int]:
    return item, worker, stage, microbatch if item.each == "microbatch" else NOTHING
