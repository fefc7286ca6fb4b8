"""Says who waits for whom when no worker gets any further, and ends what lasts too long."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pipekit.engine.interrupts import deferred_interrupts
from pipekit.engine.observers.worker_states import Numbered, WorkerStates

NOTICE_S = 30.0
"""Seconds without progress after which it is said what every worker is at; then after as many
again, and so on."""

LOOK_S = 0.5  # how often somebody looks

PATIENCE_S = 1.0
"""Seconds without progress, and three times the longest pause before, that a run which ends by an
error is waited for."""


class Stalled(TimeoutError):
    """No worker has got any further for as long as the pipeline's ``timeout`` says."""


class Watchdog:
    """Looks at workers now and then.

    Args:
        states: what they are at.
        workers: what they do; those of other processes may be left out.
        stage_workers: the workers that have each stage.
        timeout: seconds without progress that are too many; None: there are none.
    """

    def __init__(
        self,
        states: WorkerStates,
        workers: Sequence[Numbered],
        stage_workers: Sequence[Sequence[int]],
        timeout: float | None,
    ) -> None:
        self._states, self._timeout = states, timeout
        self._describe = partial(states.describe, workers, stage_workers)
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
            BaseException: that of :meth:`ends_by`, if a worker gets no further meanwhile.
        """
        now, moment = self._states.now(), time.monotonic()
        if now != self._last:
            self._longest = max(self._longest, moment - self._since)
            self._last, self._since, self._notice = now, moment, NOTICE_S
            return
        idle = moment - self._since
        if self._error is not None and idle >= PATIENCE_S + 3 * self._longest:
            raise self._error
        if self._timeout is not None and idle >= self._timeout:
            raise Stalled(self._said(idle))
        if idle >= self._notice:
            self._notice += NOTICE_S
            print(f"pipekit: {self._said(idle)}", file=sys.stderr, flush=True)

    @contextmanager
    def looking(self, on_stall: Callable[[Stalled], None]) -> Iterator[None]:
        """Look for a while, in a thread of its own.

        Args:
            on_stall: called there once workers have stalled.
        """
        over = threading.Event()

        def run() -> None:
            try:
                while not over.wait(LOOK_S):
                    self.look()
            except Stalled as stalled:
                on_stall(stalled)

        thread = threading.Thread(target=run, name="pipekit watchdog", daemon=True)
        with deferred_interrupts():  # one in its start may end a thread before it has begun
            thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _said(self, idle: float) -> str:
        lines = "".join(f"\n  {line}" for line in self._describe())
        return f"no worker has got any further for {idle:.0f} s:{lines}"
