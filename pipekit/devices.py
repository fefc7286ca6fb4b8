"""When things happen on a device, and in which order."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Marks points of a device's work, and turns them into seconds once it is done.

    On a CPU a mark is the time; on a GPU, where calls return before the work is done, it is an
    event in the current stream.

    Args:
        device: whose work is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        if self._cuda:
            with torch.cuda.device(device):
                torch.cuda.synchronize()
                self._origin = self.now()
                torch.cuda.synchronize()
                self._origin_s = time.perf_counter()

    def now(self) -> object:
        """Return a mark at this point of the device's work."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: object) -> float:
        """Return a mark's time in seconds, on the scale of ``time.perf_counter()``."""
        if isinstance(mark, float):
            return mark
        assert isinstance(mark, torch.cuda.Event)
        assert isinstance(self._origin, torch.cuda.Event)
        mark.synchronize()
        return self._origin_s + float(self._origin.elapsed_time(mark)) / 1e3


def unix_ns(seconds: float) -> int:
    """Return a time on the scale of ``time.perf_counter()`` as nanoseconds of Unix time."""
    return time.time_ns() - round((time.perf_counter() - seconds) * 1e9)


def new_stream(device: torch.device) -> "torch.cuda.Stream | None":
    """Return a stream of a GPU's for one worker's computing; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


@contextmanager
def on_stream(device: torch.device, stream: "torch.cuda.Stream | None") -> Iterator[None]:
    """Make a GPU and a stream there current in this thread; on a CPU do nothing."""
    if device.type == "cuda":
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
    else:
        yield
