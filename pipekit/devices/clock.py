"""When an accelerator did what, in seconds of the host's clock."""

import time

import torch

from pipekit.devices.streams import current_stream, synchronize
from pipekit.devices.which import is_accelerator


class Clock:
    """Marks points of a device's work, and turns them into seconds once it is done.

    On a CPU a mark is the time; on an accelerator, where calls return before the work is done, it
    is an event in this thread's stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._timed_by_events = is_accelerator(device)
        # An event, and when it was; there is none before anybody asks for a time.
        self._known: torch.Event | None = None
        self._known_s = 0.0

    def now(self) -> object:
        """Return a mark at this point of the device's work; the first one waits for it."""
        if not self._timed_by_events:
            return time.perf_counter()
        if self._known is None:
            synchronize(self.device)
            self._known = self._event()
            self._known.synchronize()
            self._known_s = time.perf_counter()
        return self._event()

    def seconds(self, mark: object) -> float:
        """Return a mark's time in seconds, on the scale of ``time.perf_counter()``.

        An accelerator is waited for, until it has come to the mark.
        """
        if isinstance(mark, float):
            return mark
        assert isinstance(mark, torch.Event)
        assert self._known is not None, "a mark of another clock"
        mark.synchronize()
        # From the last mark that was asked for, not from the first: the milliseconds between two
        # events are a float32, which after an hour counts in quarters of a millisecond.
        self._known_s += self._known.elapsed_time(mark) / 1e3
        self._known = mark
        return self._known_s

    def _event(self) -> torch.Event:
        event = torch.Event(self.device, enable_timing=True)
        event.record(current_stream(self.device))
        return event


def unix_ns(seconds: float) -> int:
    """Return a time on the scale of ``time.perf_counter()`` as nanoseconds of Unix time."""
    return time.time_ns() - round((time.perf_counter() - seconds) * 1e9)
