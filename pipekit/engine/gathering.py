"""Threads that take turns all the time are faster on one core than on several.

Python's interpreter serves one thread at a time, and operators let go of it for as long as they
compute.  If that is microseconds, and the next thread is on another core, waking it costs more than
the operator did: a pipeline of four tiny stages runs at less than half its speed on two cores, and
spends twice the processor time.  So threads are watched from outside, by what they compute between
two times that they wait, and gathered on one core while that is little.

The system does not do so by itself, for it cannot know that they wait for each other.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

LOOK_EVERY_S = 0.025
FEWEST_WAITS = 50  # fewer say nothing

# Measured on two cores with multilayer perceptrons: those that are faster on one compute for 40 to
# 110 us between two waits (of width 16 to 128, on 4 stages; on 2 stages, of width 16, to 200), the
# others for 190 us and more.
SHORT_S = 160e-6

# Gathered threads wait less often, so that only spread ones show what is good for them: they are
# spread again for a look after the first of these times, and after twice as long each time.
FIRST_REST_S, LAST_REST_S = 0.5, 4.0


class Use(NamedTuple):
    """What this process has used so far.

    Attributes:
        computed: processor time of all its threads, in seconds.
        waits: how often any of them gave up its core to wait.
    """

    computed: float
    waits: int

    @classmethod
    def now(cls) -> "Use":
        """Return what has been used until now."""
        import resource  # not on Windows, where no thread can be placed either

        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, used.ru_nvcsw)


class Gathering:
    """Gathers threads on one core while they compute little between two waits.

    It leaves them alone where a thread cannot be placed (outside Linux), and if operators may use
    several threads: those would be born on that core and stay there.

    Args:
        threads: they have started.
        operator_threads: how many an operator may use.
        use: returns what the process has used.
        now: returns the time in seconds.
    """

    def __init__(
        self,
        threads: Sequence[threading.Thread],
        operator_threads: int,
        use: Callable[[], Use] = Use.now,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads, self._use, self._now = threads, use, now
        can = operator_threads == 1 and hasattr(os, "sched_setaffinity")
        self._cores = os.sched_getaffinity(0) if can else set()
        self._next, self._rest = now() + LOOK_EVERY_S, FIRST_REST_S
        self._before: Use | None = None  # at the beginning of this look; None: at none
        self.gathered = False

    @property
    def look_every_s(self) -> float | None:
        """How often to :meth:`look`; None: there is nothing to look for."""
        return LOOK_EVERY_S if len(self._cores) > 1 else None

    def look(self) -> None:
        """Place the threads by what they do while spread; call it every :attr:`look_every_s`."""
        if self.look_every_s is None or self._now() < self._next:
            return
        use, before = self._use(), self._before
        self._before, self._next = use, self._now() + LOOK_EVERY_S
        if before is None:  # they have been getting ready, or were gathered
            self._place(self._cores)
        elif use.waits < before.waits + FEWEST_WAITS:
            self._before = before
        elif (use.computed - before.computed) / (use.waits - before.waits) > SHORT_S:
            self._rest = FIRST_REST_S
        else:
            # By chance, so that programs beside this one gather elsewhere.
            self._place({random.choice(sorted(self._cores))})
            self._before, self._next = None, self._now() + self._rest
            self._rest = min(2 * self._rest, LAST_REST_S)

    def _place(self, cores: set[int]) -> None:
        gathered = len(cores) == 1
        if gathered == self.gathered:
            return
        self.gathered = gathered
        for thread in self._threads:
            if thread.is_alive() and thread.native_id is not None:
                with suppress(ProcessLookupError):  # it has ended just now
                    os.sched_setaffinity(thread.native_id, cores)
