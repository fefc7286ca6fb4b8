"""What a worker did and when, as events of a trace, and how many bytes it sent to whom."""

from collections import Counter
from typing import NamedTuple

from pipekit.devices import Clock
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.schedules import Message, Step
from pipekit.trees import Tree


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
    """Records when one worker computed what, and how many bytes it sent of it."""

    def __init__(self) -> None:
        self._clock: Clock | None = None
        self._start: object = None
        self._marks: list[tuple[Step, str, object, object]] = []
        self._bytes: list[int] = []

    def begin(self, worker: WorkerView) -> None:
        """Take times from the worker's clock."""
        self._clock = worker.clock
        self._now = worker.clock.now

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        """Mark the start."""
        self._start = self._now()

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        """Mark the end."""
        self._marks.append((step, activity, self._start, self._now()))
        self._bytes.append(0)

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count what the last activity gave."""
        self._bytes[-1] += size

    def events(self) -> list[Event]:
        """Return what was done, with times in seconds on this host's monotonic clock."""
        if self._clock is None:
            return []
        seconds = self._clock.seconds
        return [
            Event(
                step.task.stage,
                activity,
                step.task.microbatch,
                step.task.version,
                seconds(start),
                seconds(end),
                size,
            )
            for (step, activity, start, end), size in zip(self._marks, self._bytes, strict=True)
        ]


class TrafficCounter(Observer):
    """Counts the bytes that one worker sends to other workers' stages.

    Attributes:
        sent_bytes: by receiver and purpose, "activation", "gradient" or "weights".
    """

    def __init__(self) -> None:
        self.sent_bytes: Counter[tuple[int, str]] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count a message, unless the worker sends it to itself."""
        if receiver != worker:
            self.sent_bytes[receiver, message.purpose] += size
