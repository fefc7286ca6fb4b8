"""What workers recorded, and all of it as one trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor

from pipekit.devices import Clock, unix_ns
from pipekit.engine.observers.memory_tracker import NOTHING, HeldBytes, MemoryTracker
from pipekit.engine.observers.observer import Observer
from pipekit.schedules import OPS, Message, Op, Step, Task
from pipekit.traces import COLUMNS, Trace
from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.record import moved
from pipekit.trees import Tree

_HELD = ["worker", "time_s", *PARTS]


class Event(NamedTuple):
    """One thing that a worker did; the fields are columns of :class:`pipekit.traces.Trace`."""

    stage: int
    op: str
    microbatch: int
    version: int
    start: float
    end: float
    bytes: int


class TraceRecorder(Observer):
    """Records when one worker computed what, and how many bytes it sent of it or moved."""

    def __init__(self, clock: Clock) -> None:
        self._seconds, self._now = clock.seconds, clock.now
        self._start: object = None
        self._marks: list[tuple[Step, str, object, object]] = []
        self._bytes: list[int] = []

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._start = self._now()

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self._marks.append((step, activity, self._start, self._now()))
        self._bytes.append(0)

    def before_move(self, worker: int, step: Step) -> None:
        self._start = self._now()

    def moved(self, worker: int, step: Step, memory: Sequence[Tensor]) -> None:
        self._marks.append((step, step.task.op.name, self._start, self._now()))
        self._bytes.append(sum(row.nbytes for row in memory))

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        self._bytes[-1] += size

    def events(self) -> list[Event]:
        """Return what was done, with times in seconds on this host's monotonic clock."""
        found = []
        for (step, activity, start, end), size in zip(self._marks, self._bytes, strict=True):
            _, stage, microbatch, version = step.task
            times = self._seconds(start), self._seconds(end)
            found.append(Event(stage, activity, microbatch, version, *times, size))
        return found


@dataclass
class WorkerRecord:
    """What one worker recorded, with times in seconds on its host's monotonic clock.

    All but its events are those of :class:`.MemoryTracker`, if memory was followed.
    """

    events: list[Event] = field(default_factory=list)
    memory: list[tuple[float, HeldBytes]] = field(default_factory=list)
    lent: list[tuple[float, int, int]] = field(default_factory=list)

    def later(self, seconds: float) -> "WorkerRecord":
        return WorkerRecord(
            [e._replace(start=e.start + seconds, end=e.end + seconds) for e in self.events],
            [(when + seconds, held) for when, held in self.memory],
            [(when + seconds, peer, size) for when, peer, size in self.lent],
        )


def recorded(trace: TraceRecorder | None, memory: MemoryTracker | None) -> WorkerRecord:
    """Return what these have recorded so far of a worker's events and memory."""
    events = trace.events() if trace else []
    return WorkerRecord(events, memory.samples, memory.lent) if memory else WorkerRecord(events)


def as_trace(records: Sequence[WorkerRecord], name: str, label: str = "measured") -> Trace:
    """Return what all workers of a run recorded, from time 0."""
    begins = [event.start for one in records for event in one.events]
    begins = begins or [when for one in records for when, _ in one.memory]
    origin = min(begins, default=0.0)
    frame = table([(w, *event) for w, one in enumerate(records) for event in one.events], COLUMNS)
    frame["start_s"] -= origin
    frame["end_s"] -= origin
    is_beside = frame["op"].isin([op.name for op in OPS if op.stream])
    beside = moved(
        (w, Task(Op.named(op), stage, microbatch, version), start, end, size)
        for w, stage, op, microbatch, version, start, end, size in frame[is_beside].to_numpy()
    )
    held = [
        (w, when - origin, *parts) for w in range(len(records)) for when, parts in _held(records, w)
    ]
    return Trace(
        frame[~is_beside].reset_index(drop=True) if len(beside) else frame,
        label,
        name,
        len(records),
        transfers=beside if len(beside) else None,
        memory=Memory(table(held, _HELD), label) if held else None,
        origin_ns=unix_ns(origin) if begins else None,
    )


def _held(records: Sequence[WorkerRecord], worker: int) -> Iterator[tuple[float, HeldBytes]]:
    """Yield when a worker held what, with what it holds for others."""
    own: list[tuple[float, HeldBytes | int]] = [*records[worker].memory]
    own += [(when, n) for one in records for when, peer, n in one.lent if peer == worker]
    held, guests = NOTHING, 0
    for when, change in sorted(own, key=itemgetter(0)):
        if isinstance(change, HeldBytes):
            held = change
        else:
            guests += change
        yield when, held._replace(activations=held.activations + guests)


def table(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    """Return a table of rows: made column by column it takes pandas a seventh of the time."""
    if not rows:
        return pd.DataFrame(columns=columns)
    return pd.DataFrame(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
