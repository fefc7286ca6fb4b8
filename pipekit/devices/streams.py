"""The order of an accelerator's work: streams, events, and memory that several streams use.

On a CPU a call returns when its work is done.  There a stream and an event are None, and to wait
for one does nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from pipekit.devices.which import is_accelerator

Event = torch.Event | None
"""A point of a stream's work; None: of the host's, which is past it."""


def new_stream(device: torch.device) -> torch.Stream | None:
    """Return a stream of a device's."""
    return torch.Stream(device) if is_accelerator(device) else None


@contextmanager
def on_stream(stream: torch.Stream | None) -> Iterator[None]:
    """Have a stream and its device be this thread's current ones, for a while.

    Backwards that are called meanwhile run in this thread, as on a CPU, and not in the one that
    autograd has for each device: several workers may share a device, and whoever waits for a worker
    may be in that very thread (a pipelined module within a checkpoint that calls autograd again).
    """
    if stream is None:
        yield
        return
    with stream, torch.autograd.set_multithreading_enabled(False):
        yield


def current_stream(device: torch.device) -> torch.Stream:
    """Return an accelerator's stream that this thread's work on it goes to."""
    return torch.accelerator.current_stream(device)


def record_event(device: torch.device) -> Event:
    """Return an event at this point of this thread's work on a device."""
    return current_stream(device).record_event() if is_accelerator(device) else None


def record_events(tensors: Iterable[Tensor]) -> list[torch.Event]:
    """Return an event at this point of this thread's work on each device that tensors lie on."""
    events = [record_event(device) for device in {tensor.device for tensor in tensors}]
    return [event for event in events if event is not None]


def wait_event(device: torch.device, event: Event) -> None:
    """Let this thread's later work on a device wait for an event; this thread goes on."""
    if event is not None:
        current_stream(device).wait_event(event)


def synchronize(device: torch.device) -> None:
    """Wait until all work that this thread has given a device is done."""
    if is_accelerator(device):
        current_stream(device).synchronize()


def keep_for_current_stream(tensor: Tensor) -> Tensor:
    """Return a tensor from another stream, whose memory now also waits for this thread's stream.

    The allocator gives freed memory to the stream that it came from, at once; what another stream
    has still to do with it, it must be told.
    """
    if is_accelerator(tensor.device):
        tensor.record_stream(current_stream(tensor.device))
    return tensor


def wait_events(tensors: Iterable[Tensor], events: Sequence[torch.Event]) -> None:
    """Let this thread's later work on the devices that tensors lie on wait for events."""
    for device in {tensor.device for tensor in tensors if is_accelerator(tensor.device)}:
        for event in events:
            wait_event(device, event)


class ThreadStreams:
    """The streams that one thread's work goes to, for other threads that work for it."""

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._streams = [current_stream(d) for d in dict.fromkeys(devices) if is_accelerator(d)]

    def record_events(self) -> list[torch.Event]:
        """Return events at this point of that thread's work."""
        return [stream.record_event() for stream in self._streams]

    def wait_stream(self, other: torch.Stream | None) -> None:
        """Let that thread's later work on a stream's device wait for the stream's work so far."""
        for stream in self._streams:
            if other is not None and stream.device == other.device:
                stream.wait_stream(other)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread's work go to the same streams, for a while."""
        with ExitStack() as stack:
            for stream in self._streams:
                stack.enter_context(stream)
            yield
