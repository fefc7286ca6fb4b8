"""Why a worker computes nothing: each gap between its events, its cause, and whom it waits for."""

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pandas as pd

from pipekit.schedules import OPS, Op
from pipekit.schedules.ops import Payload
from pipekit.traces.event_graph import EventGraph
from pipekit.traces.record import RECOMPUTE

GAPS = ["worker", "start_s", "end_s", "cause", "waits_for", "waits_for_worker", "before"]
ROWS = ["waits_for_row", "before_row"]
"""Where the events that a gap names stand in the trace's frame; -1 where there is none."""
Row = tuple[Any, ...]
"""A gap: what :data:`GAPS` and :data:`ROWS` name."""
_LETTERS = {RECOMPUTE: "R", **{op.name: op.value for op in Op}}
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


def gaps(graph: EventGraph, workers: int) -> pd.DataFrame:
    """Return when workers compute nothing, and why; see :meth:`pipekit.traces.Trace.gaps`."""
    run = _Run(graph)
    rows = [row for worker in range(workers) for row in run.gaps_of(worker)]
    return pd.DataFrame(rows, columns=[*GAPS, *ROWS])


def describe_gaps(found: pd.DataFrame, makespan_s: float, workers: int) -> str:
    """Return in words what part of all workers' time each cause of idleness takes.

    Args:
        found: what :func:`gaps` returned.
        makespan_s: of the run.
        workers: how many it had.
    """
    seconds = (found["end_s"] - found["start_s"]).groupby(found["cause"]).sum()
    total = makespan_s * workers
    shares = {cause.value: 100 * seconds.get(cause.value, 0.0) / total for cause in CAUSES}
    told = [f"{share:.1f} % {cause}" for cause, share in shares.items() if share >= 0.05]
    return "idle: " + ", ".join(told) if told else "never idle"


class _Run:
    """A trace's events as lists, each in an order in which they can run."""

    def __init__(self, graph: EventGraph) -> None:
        self.needs, self.rows = graph.needs, graph.rows
        columns = ["worker", "stage", "op", "microbatch", "version", "start_s", "end_s"]
        self.worker, self.stage, self.op, self.microbatch, version, self.start, self.end = (
            graph.frame[name].tolist() for name in columns
        )
        self.own: dict[int, list[int]] = defaultdict(list)
        for number, worker in enumerate(self.worker):
            self.own[worker].append(number)
        self.first, self.last = min(self.start), max(self.end)
        self.least = _LEAST * (self.last - self.first)
        self.stops = dict(self._stops(version))

    def _stops(self, version: list[int]) -> Iterator[tuple[int, int]]:
        """Yield each update that all stages make together, and the last pass that they wait for.

        They do so if none of them begins its update before every stage has computed its gradient.
        """
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

    def gaps_of(self, worker: int) -> Iterator[Row]:
        """Yield a worker's gaps, in order."""
        own = sorted(self.own[worker], key=self.start.__getitem__)
        until = self.first
        for place, number in enumerate(own):
            if self.start[number] > until + self.least:
                # Passes that run together wait for what either of them needs.
                together = [
                    n for n in own[place : place + 2] if self.start[n] == self.start[number]
                ]
                needs = [need for n in together for need in self.needs[n]]
                latest = max(needs, key=self.end.__getitem__, default=None)
                yield from self._before(number, until, latest, is_first=not place)
            until = max(until, self.end[number])
        if self.last > until + self.least:
            yield self._row(worker, until, self.last, Cause.DRAIN)

    def _before(
        self, number: int, until: float, latest: int | None, is_first: bool
    ) -> Iterator[Row]:
        """Yield the gap before an event: until what it needs is computed, and until it begins."""
        worker, start = self.worker[number], self.start[number]
        if is_first:
            yield self._row(worker, until, start, Cause.WARM_UP, latest, number)
            return
        computed = until
        if latest is not None and self.end[latest] > until + self.least:
            computed = min(self.end[latest], start)
            yield self._row(worker, until, computed, self._waiting(number), latest, number)
        stop = self.stops.get(number)
        if stop is not None and self.end[stop] > computed + self.least:
            yield self._row(worker, computed, self.end[stop], Cause.GLOBAL_STOP, stop, number)
            computed = self.end[stop]
        if start > computed + self.least:
            away = latest is not None and self.worker[latest] != worker
            late = Cause.SUM if self.op[number] == Op.UPDATE.name else Cause.TRANSFER
            rest = Cause.OTHER if stop is None else Cause.GLOBAL_STOP
            cause, source = (late, latest) if away else (rest, None)
            yield self._row(worker, computed, start, cause, source, number)

    def _waiting(self, number: int) -> Cause:
        """Return what an event waits for until that is computed."""
        rule = OPS[Op[self.op[number]]]
        if not rule.is_pass:
            return Cause.SUM
        return Cause.ACTIVATION if rule.receives is Payload.ACTIVATION else Cause.GRADIENT

    def _row(
        self,
        worker: int,
        start: float,
        end: float,
        cause: Cause,
        source: int | None = None,
        before: int | None = None,
    ) -> Row:
        return (
            worker,
            start,
            end,
            cause.value,
            "" if source is None else self._label(source),
            -1 if source is None else int(self.worker[source]),
            "" if before is None else self._label(before),
            -1 if source is None else self.rows[source],
            -1 if before is None else self.rows[before],
        )

    def _label(self, number: int) -> str:
        """Return an event's name as a picture has it, with its stage."""
        letter, microbatch = _LETTERS[self.op[number]], int(self.microbatch[number])
        return f"{letter}{microbatch} of stage {int(self.stage[number])}"
