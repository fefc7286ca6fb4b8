"""The seconds of a search, and the steps taken in them."""

import time


class Budget:
    """Counts steps, and says whether there is time for them.

    Time only ends a search and never leads it: with more, the same steps are taken first.

    Attributes:
        steps: taken so far.
    """

    def __init__(self) -> None:
        self.steps, self._begin = 0, time.monotonic()
        self._end = self._begin

    def allow(self, share: float, seconds: float) -> None:
        """Let the steps from here on take a share of what is left of so many seconds in all."""
        now = time.monotonic()
        self._end = now + max(0.0, self._begin + seconds - now) * share

    def step(self) -> bool:
        """Count a step; return whether there is time for it."""
        self.steps += 1
        return time.monotonic() < self._end

    def elapsed_s(self) -> float:
        """Return the seconds since the search began."""
        return time.monotonic() - self._begin
