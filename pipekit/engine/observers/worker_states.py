"""What every worker is at, for whoever wants to know why nothing moves."""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from typing_extensions import Buffer

from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.schedules import OPS, Message, Op, Step, Steps
from pipekit.schedules.lowering.steps import FIRST_TIE, MAIN
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree

STARTING, WAITING, COMPUTING, SENDING, DONE = range(5)
_NUMBERS = 3  # a worker: steps begun, which of the above, changes


class Numbered(Protocol):
    """What a worker does, by its number."""

    @property
    def index(self) -> int:
        """Its number."""

    @property
    def steps(self) -> Steps:
        """Its steps, in order."""


class WorkerStates:
    """A few numbers for each worker, which it writes and anybody may read at any time.

    Args:
        workers: how many there are.
        memory: where the numbers lie, zeros; by default in this process alone.
    """

    def __init__(self, workers: int, memory: Buffer | None = None) -> None:
        size = self.size(workers)
        self._memory = memoryview(bytearray(size) if memory is None else memory)[:size]
        self._numbers = self._memory.cast("B").cast("q")

    @staticmethod
    def size(workers: int) -> int:
        """Return how many bytes the numbers of so many workers take."""
        return 8 * _NUMBERS * workers

    def observer(self, worker: int) -> Observer:
        """Return what writes the numbers of a worker, from zero on."""
        mine = self._numbers[_NUMBERS * worker : _NUMBERS * (worker + 1)]
        mine[0], mine[1], mine[2] = 0, STARTING, mine[2] + 1
        return _StateObserver(mine)

    def detach(self) -> None:
        """Keep the numbers as they are now, and let go of the memory that others write to."""
        self._memory = memoryview(bytearray(self._memory))
        self._numbers = self._memory.cast("q")

    def now(self) -> bytes:
        """Return all numbers, which are others as soon as any worker has got on."""
        return self._memory.tobytes()

    def describe(
        self, workers: Sequence[Numbered], stage_workers: Sequence[Sequence[int]]
    ) -> list[str]:
        """Return a line for each worker: its task, and what it waits for."""
        return [self._line(worker, stage_workers) for worker in workers if worker.steps.distinct]

    def _line(self, worker: Numbered, stage_workers: Sequence[Sequence[int]]) -> str:
        begun, state, _ = self._numbers[_NUMBERS * worker.index : _NUMBERS * (worker.index + 1)]
        who = f"worker {worker.index}"
        if state == DONE:
            return f"{who} is done"
        step = next(islice(worker.steps.until(), begun - 1, None), None) if begun > 0 else None
        if state == STARTING or step is None:
            return f"{who} has not begun"
        if state == COMPUTING:
            return f"{who} computes {step.task}"
        if state == SENDING:
            return f"{who} has computed {step.task}"
        return f"{who} waits in {step.task} for {_needs(step, worker.index, stage_workers)}"


class _StateObserver(Observer):
    """Writes what one worker is at."""

    def __init__(self, numbers: memoryview) -> None:
        self._numbers = numbers

    def before_step(self, worker: int, step: Step) -> None:
        numbers = self._numbers
        numbers[0] += 1
        numbers[1] = WAITING
        numbers[2] += 1

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._numbers[1] = COMPUTING
        self._numbers[2] += 1

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        # A forward that was run again: its backward still waits for its gradient.
        self._numbers[1] = WAITING if activity == RECOMPUTE else SENDING
        self._numbers[2] += 1

    def begin(self, worker: WorkerView) -> None:
        self._numbers[2] += 1

    def end(self, worker: int) -> None:
        self._numbers[1] = DONE
        self._numbers[2] += 1


def _way(message: Message) -> str:
    if message.skip == MAIN:
        return ""
    return " (of shared weights)" if message.skip <= FIRST_TIE else f" (skip {message.skip})"


def _needs(step: Step, worker: int, stage_workers: Sequence[Sequence[int]]) -> str:
    """Return what a step may wait for before it computes."""
    task = step.task
    if step.receives:
        return " and ".join(
            f"the {message.payload.value} of microbatch {message.microbatch} from worker {source}"
            + _way(message)
            for message, source in step.receives
        )
    if task.op is Op.FORWARD:
        return "its batch"
    if OPS[task.op].is_pass:
        return "nothing"
    others = [each for each in stage_workers[task.stage] if each != worker]
    if others:
        return f"the sum of gradients with workers {', '.join(map(str, others))}"
    return "the other stages' updates"
