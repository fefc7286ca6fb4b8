"""The seconds of a search, and the steps taken in them."""

import time


class Budget:
    """Counts steps, and says whether there is time for them.

    Time is the thread's on a core, so that a busy machine makes no search worse.  It only ends a
    search and never leads it: with more, the same steps are taken first.

    Attributes:
        steps: taken so far.
    """

    def __init__(self) -> None:
        self.steps, self._begin = 0, time.thread_time()
        self._end = self._begin

    def allow(self, share: float, seconds: float) -> None:
        """Let the steps from here on take a share of what is left of so many seconds in all."""
        now = time.thread_time()
        self._end = now + max(0.0, self._begin + seconds - now) * share

    def step(self) -> bool:
        """Count a step; return whether there is time for it."""
        self.steps += 1
        return time.thread_time() < self._end

    def elapsed_s(self) -> float:
        """Return the seconds of the search so far."""
        return time.thread_time() - self._begin
