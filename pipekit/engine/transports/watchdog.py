"""Says who waits for whom when no worker gets any further, and ends what lasts too long."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from typing_extensions import Buffer

from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.observers.observer import Observer
from pipekit.schedules import Message, Op, Step, Steps
from pipekit.schedules.lowering.steps import FIRST_TIE, MAIN
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree

NOTICE_S = 30.0  # without progress, after which every worker's task is printed, and then again
LOOK_S = 0.5  # between two looks
PATIENCE_S = 1.0
"""A run that ends by an error is waited for so many seconds without progress, and three times the
longest pause before."""

STARTING, WAITING, COMPUTING, SENDING, DONE, READING = range(6)
_NUMBERS = 3  # a worker: steps begun, which of the above, changes
BYTES = 8 * _NUMBERS  # of a worker's numbers


class Stalled(TimeoutError):
    """No worker has got any further for as long as the pipeline's ``timeout`` says."""


class WorkerStates(Observer):
    """A few numbers for each worker, which it writes and anybody may read at any time."""

    def __init__(self, workers: int, memory: Buffer | None = None) -> None:
        size = BYTES * workers  # in ``memory``, as zeros, or in this process alone
        self._memory = memoryview(bytearray(size) if memory is None else memory)[:size]
        self._numbers = self._memory.cast("B").cast("q")

    def restart(self, worker: int) -> None:
        self._numbers[_NUMBERS * worker] = 0
        self._note(worker, STARTING)

    def before_step(self, worker: int, step: Step) -> None:
        self._numbers[_NUMBERS * worker] += 1
        self._note(worker, WAITING)

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._note(worker, COMPUTING)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        # A forward that was run again: its backward still waits for its gradient.
        self._note(worker, WAITING if activity == RECOMPUTE else SENDING)

    def end(self, worker: int) -> None:
        self._note(worker, DONE)

    def _note(self, worker: int, state: int) -> None:
        place = _NUMBERS * worker + 1
        self._numbers[place] = state
        self._numbers[place + 1] += 1

    def of(self, worker: int) -> tuple[int, int]:
        """Return how many steps a worker has begun, and its state."""
        begun, state = self._numbers[_NUMBERS * worker : _NUMBERS * worker + 2]
        return begun, state

    @contextmanager
    def reading(self, worker: int) -> Iterator[None]:
        """Note that a worker reads its data for a while."""
        _, before = self.of(worker)
        self._note(worker, READING)
        try:
            yield
        finally:
            self._note(worker, before)

    def now(self) -> bytes:
        """Return all numbers, which change as soon as any worker has got on."""
        return self._memory.tobytes()


class Watchdog:
    """Looks at workers now and then.

    ``noted`` is called at each look, with the line of each worker if none gets any further, else
    with None; it may raise.
    """

    def __init__(
        self,
        states: WorkerStates,
        steps: Mapping[int, Steps],  # of the workers of this process
        stage_workers: Sequence[Sequence[int]],
        timeout: float | None,  # seconds without progress that are too many
        beside: Callable[[], Sequence[str]] = list,  # gives sentences about other workers
        noted: Callable[[Sequence[str] | None], object] = lambda lines: None,
    ) -> None:
        self._noted = noted
        self._states, self._timeout, self._beside = states, timeout, beside
        self._steps, self._stage_workers = steps, stage_workers
        self._last, self._since, self._notice = b"", time.monotonic(), NOTICE_S
        self._longest = 0.0
        self._error: BaseException | None = None

    def ends_by(self, error: BaseException) -> None:
        """Note that a worker has failed, and that the others finish the batches before."""
        self._error = self._error or error

    def look(self) -> None:
        """See whether any worker has got on since the last look.

        Raises:
            Stalled: none has for too long.
            BaseException: that of :meth:`ends_by`, if no worker gets any further meanwhile.
        """
        now, moment = self._states.now(), time.monotonic()
        if now != self._last:
            self._longest = max(self._longest, moment - self._since)
            self._last, self._since, self._notice = now, moment, NOTICE_S
            self._noted(None)
            return
        idle = moment - self._since
        if idle >= PATIENCE_S:
            self._noted([self.line(worker) for worker in self._steps])
        if self._error is not None and idle >= PATIENCE_S + 3 * self._longest:
            raise self._error
        if self._timeout is not None and idle >= self._timeout:
            raise Stalled(self._said(idle))
        if idle >= self._notice:
            self._notice += NOTICE_S
            print(f"pipekit: {self._said(idle)}", file=sys.stderr, flush=True)

    @contextmanager
    def looking(self, on_stall: Callable[[Exception], None]) -> Iterator[None]:
        """Look for a while, in a thread of its own, which calls ``on_stall`` with an error."""
        over = threading.Event()

        def run() -> None:
            try:
                while not over.wait(LOOK_S):
                    self.look()
            except Exception as error:
                on_stall(error)

        thread = threading.Thread(target=run, name="pipekit watchdog", daemon=True)
        with deferred_interrupts():  # one in its start may end a thread before it has begun
            thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _said(self, idle: float) -> str:
        known = [self.line(worker) for worker, steps in self._steps.items() if steps.distinct]
        lines = "".join(f"\n  {line}" for line in [*known, *self._beside()])
        return f"no worker has got any further for {idle:.0f} s:{lines}"

    def line(self, worker: int) -> str:
        steps = self._steps[worker]
        begun, state = self._states.of(worker)
        who = f"worker {worker}"
        if state == DONE:
            return f"{who} is done"
        step = next(islice(steps.until(), begun - 1, None), None) if begun > 0 else None
        if state == READING:
            return f"{who} reads its data{f' in {step.task}' if step else ''}"
        if state == STARTING or step is None:
            return f"{who} has not begun"
        if state == COMPUTING:
            return f"{who} computes {step.task}"
        if state == SENDING:
            return f"{who} has computed {step.task}"
        return f"{who} waits in {step.task} for {_needs(step, worker, self._stage_workers)}"


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
    if task.op.is_pass:
        return "nothing"
    others = [each for each in stage_workers[task.stage] if each != worker]
    if others:
        return f"the sum of gradients with workers {', '.join(map(str, others))}"
    return "the other stages' updates"


def _way(message: Message) -> str:
    if message.skip == MAIN:
        return ""
    return " (of shared weights)" if message.skip <= FIRST_TIE else f" (skip {message.skip})"
