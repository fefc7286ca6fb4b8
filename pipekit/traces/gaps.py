"""Why a worker computes nothing: each gap between its events, its cause, and whom it waits for."""

import math
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum

import pandas as pd

from pipekit.schedules import Op
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.ops import Item, Payload
from pipekit.traces.event_graph import EventGraph, last_of

GAPS = ["worker", "start_s", "end_s", "cause", "waits_for", "waits_for_worker", "before"]
ROWS = ["waits_for_row", "before_row"]  # in the trace's frame; -1 where there is none
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


def gaps(
    graph: EventGraph, beside: pd.DataFrame, workers: int, span_s: tuple[float, float]
) -> pd.DataFrame:
    """Return when workers compute nothing between the two ends of a run, and why.

    ``beside`` has the tasks of other streams; see :meth:`pipekit.traces.Trace.gaps`.
    """
    first, last = span_s
    run = _TracedRun(graph, beside, _LEAST * (last - first))
    found: list[tuple[int, float, float, str, int, int]] = []
    for worker in range(workers):
        until, own = first, run.own.get(worker, [])
        for place, number in enumerate(own):
            if run.starts[number] > until + run.least:
                for cause, end, source in run.reasons(own[place : place + 2], is_first=not place):
                    if end > until + run.least:
                        found.append((worker, until, end, cause.value, source, number))
                        until = end
            until = max(until, run.ends[number])
        if last > until + run.least:
            found.append((worker, until, last, Cause.DRAIN.value, NOTHING, NOTHING))
    table = pd.DataFrame(found, columns=[*GAPS[:4], "source", "number"])
    source, number = table.pop("source"), table.pop("number")
    about = {
        "waits_for": [run.label(each) for each in source],
        "waits_for_worker": [run.workers[each] for each in source],
        "before": [run.label(each) for each in number],
        "waits_for_row": source.where(source < len(run.starts), NOTHING),
        "before_row": number,
    }
    return table.assign(**about)


def describe_gaps(found: pd.DataFrame, makespan_s: float, workers: int) -> str:
    """Return in words what part of all workers' time each cause takes that :func:`gaps` found."""
    seconds = (found["end_s"] - found["start_s"]).groupby(found["cause"]).sum()
    total = makespan_s * workers
    shares = {cause.value: 100 * seconds.get(cause.value, 0.0) / total for cause in CAUSES if total}
    told = [f"{share:.1f} % {cause}" for cause, share in shares.items() if share >= 0.05]
    return "idle: " + ", ".join(told) if told else "never idle"


class _TracedRun:
    """The events of a trace, by their rows, behind them tasks of other streams; NOTHING is last."""

    def __init__(self, graph: EventGraph, beside: pd.DataFrame, least: float) -> None:
        self.least, self.needs, events = least, graph.needs, graph.frame
        moves = beside.assign(op=beside["purpose"].str.upper())
        away = [Op.named(name).leaves for name in moves["op"]]
        moves["worker"] = moves["source"].where(away, moves["destination"])
        names = "worker", "op", "stage", "microbatch", "end_s"
        workers, ops, *places, ends = ([*events[name], *moves[name]] for name in names)
        self.starts: list[float] = events["start_s"].tolist()
        self.ends, self.workers = [*ends, -math.inf], [*workers, NOTHING]
        self.ops, self.places = [*map(Op.named, ops)], [*zip(*places, strict=True)]
        own = events.sort_values("start_s", kind="stable").groupby("worker").groups
        self.own = {worker: rows.tolist() for worker, rows in own.items()}
        self.stops = self._stops(events[events["op"] == Op.UPDATE.name])
        # What tasks of other streams give.
        self.given: dict[tuple[Item, int, int, int], list[int]] = defaultdict(list)
        for number in range(len(events), len(ops)):
            for item in self.ops[number].gives:
                self.given[self._place(item, number)].append(number)

    def label(self, number: int) -> str:
        if number == NOTHING:
            return ""
        stage, microbatch = self.places[number]
        return f"{self.ops[number].letter}{microbatch} of stage {stage}"

    def reasons(self, numbers: list[int], is_first: bool) -> Iterator[tuple[Cause, float, int]]:
        """Yield why an event had to wait, until when, and for whom, one reason after the other.

        ``numbers`` are it and the next one of its worker; if they run together, each waits for what
        either of them needs.
        """
        number, start = numbers[0], self.starts[numbers[0]]
        op, ends, worker = self.ops[number], self.ends, self.workers[number]
        together = [each for each in numbers if self.starts[each] == start]
        (latest,) = last_of([[need for each in together for need in self.needs[each]]], ends)
        # The last task of another stream that gives what the event needs.
        keys = (self._place(item, number) for item in (*op.needs, *op.takes))
        given = [each for key in keys for each in self.given.get(key, ())]
        (moved,) = last_of([[each for each in given if ends[each] <= start + self.least]], ends)
        if is_first and (latest != NOTHING or moved == NOTHING):
            yield Cause.WARM_UP, start, latest
        passed = Cause.ACTIVATION if op.receives is Payload.ACTIVATION else Cause.GRADIENT
        late = Cause.TRANSFER if op.is_pass else Cause.SUM
        stop = self.stops.get(number, NOTHING)
        yield passed if op.is_pass else Cause.SUM, min(ends[latest], start), latest
        yield Cause.GLOBAL_STOP, ends[stop], stop
        yield late, min(ends[moved], start), moved
        if self.workers[latest] not in (worker, NOTHING):
            yield late, start, latest
        yield Cause.OTHER if stop == NOTHING else Cause.GLOBAL_STOP, start, NOTHING

    def _stops(self, updates: pd.DataFrame) -> dict[int, int]:
        """Return of each update that all stages make together the last pass that they wait for."""
        found: dict[int, int] = {}
        for rows in updates.groupby("version").groups.values():
            (last,) = last_of([[need for row in rows for need in self.needs[row]]], self.ends)
            together = all(self.starts[row] >= self.ends[last] - self.least for row in rows)
            if together and len({self.places[row][0] for row in rows}) > 1:
                found |= dict.fromkeys(rows, last)
        return found

    def _place(self, item: Item, number: int) -> tuple[Item, int, int, int]:
        stage, microbatch = self.places[number]
        each = microbatch if item.each == "microbatch" else NOTHING
        return item, self.workers[number], stage, each
