"""Streams of accelerators: their events, the copies and moves in them, and when they did what."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pipekit.trees import Tree, tree_map

Event = torch.Event | None
"""A point of a stream's work; None: of the host's, which is past it."""


def is_accelerator(device: torch.device) -> bool:
    """Return whether a device computes by itself: neither the CPU nor "meta", shapes only, does."""
    return device.type not in ("cpu", "meta")


def new_stream(device: torch.device) -> torch.Stream | None:
    """Return a stream of a device's."""
    return torch.Stream(device) if is_accelerator(device) else None


@contextmanager
def on_stream(stream: torch.Stream | None) -> Iterator[None]:
    """Have a stream and its device be this thread's current ones, for a while.

    Backwards run in this thread meanwhile, and not in the one that autograd has for each device:
    several workers may share a device, and who waits for a worker may be in that very thread.
    """
    if stream is None:
        yield
        return
    with stream, torch.autograd.set_multithreading_enabled(False):
        yield


def as_current(device: torch.device) -> AbstractContextManager[None]:
    """Have an accelerator be this thread's current one, for a while."""
    if not is_accelerator(device):
        return nullcontext()
    return torch.accelerator.device_index(device.index)


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
    """Let this thread's later work on an accelerator wait for an event; this thread goes on."""
    if event is not None and is_accelerator(device):
        current_stream(device).wait_event(event)


def synchronize(device: torch.device) -> None:
    """Wait until all work that this thread has given a device is done."""
    if is_accelerator(device):
        current_stream(device).synchronize()


def keep_for_current_stream(tensor: Tensor) -> Tensor:
    """Return a tensor from another stream, whose memory now also waits for this thread's stream."""
    if is_accelerator(tensor.device):
        stream = current_stream(tensor.device)
        for part in _parts(tensor):
            part.record_stream(stream)
    return tensor


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensors whose memory one is: itself, or those of a sparse one."""
    if tensor.layout is torch.strided:
        return [tensor]
    coo, rows = ("_indices", "_values"), ("crow_indices", "col_indices", "values")
    columns = "ccol_indices", "row_indices", "values"
    by_layout = {torch.sparse_coo: coo, torch.sparse_csr: rows, torch.sparse_bsr: rows}
    return [getattr(tensor, name)() for name in by_layout.get(tensor.layout, columns)]


def wait_events(tensors: Iterable[Tensor], events: Sequence[torch.Event]) -> None:
    """Let this thread's later work on the devices that tensors lie on wait for events."""
    for device in {tensor.device for tensor in tensors if is_accelerator(tensor.device)}:
        for event in events:
            wait_event(device, event)


def to_device(structure: Any, device: torch.device) -> Any:
    """Return a structure with its tensors on an accelerator; for a CPU the structure itself."""
    if not is_accelerator(device):
        return structure
    return tree_map_only(
        Tensor, lambda t: keep_for_current_stream(t).to(device, non_blocking=True), structure
    )


def moved(tree: Tree, device: torch.device) -> Tree:
    """Return a structure on an accelerator; what lies on the host (lengths, say) stays there."""
    if not is_accelerator(device):
        return tree
    return tree_map(lambda t: to_device(t, device) if is_accelerator(t.device) else t, tree)


class HostNumber:
    """A number on its way from an accelerator to the host."""

    def __init__(self, number: Tensor) -> None:
        self._number = number.detach().to("cpu", non_blocking=True)
        self._copied: Event = record_event(number.device)

    @property
    def is_here(self) -> bool:
        return self._copied is None or self._copied.query()

    def item(self) -> float:
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._number.item())


class Copier:
    """Copies what a worker has computed on an accelerator to those of other workers."""

    def __init__(self, device: torch.device, beside: bool = True) -> None:
        self.device = device
        self._leaving = torch.Stream(device) if beside else None
        self._arriving: dict[torch.device, torch.Stream] = {}

    def copy(self, tree: Tree, target: torch.device) -> tuple[Tree, torch.Event]:
        """Start a copy of a structure, as :func:`moved`; return it, and the event that ends it."""
        compute = current_stream(self.device)
        if target == self.device:
            return tree, compute.record_event()
        leaving = self._leaving or compute
        leaving.wait_stream(compute)
        # PyTorch has the copy wait for the target's current stream too, and the other way round:
        # that of the target's default stream would hold up whatever computes there.
        if target not in self._arriving:
            self._arriving[target] = torch.Stream(target)
        with self._arriving[target], leaving:
            copied = moved(tree, target)
            ready = leaving.record_event()
        return copied, ready


class ThreadStreams:
    """The streams that one thread's work goes to, for other threads that work for it."""

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._streams = [current_stream(d) for d in dict.fromkeys(devices) if is_accelerator(d)]

    def record_events(self) -> list[torch.Event]:
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


class Clock:
    """Marks points of a device's work, and turns them into seconds once it is done.

    On a CPU a mark is the time, on an accelerator an event in this thread's stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        by_events = is_accelerator(device)
        # Returns a mark at this point of the device's work; the first one waits for it.
        self.now: Callable[[], Any] = self._mark if by_events else time.perf_counter
        # Waits for a mark, and returns its time on the scale of ``time.perf_counter()``.
        self.seconds: Callable[[Any], float] = self._seconds_of if by_events else float
        # An event, and when it was; there is none before anybody asks for a time.
        self._known: torch.Event | None = None
        self._known_s = 0.0

    def _mark(self) -> torch.Event:
        if self._known is None:
            synchronize(self.device)
            self._known = self._event()
            self._known.synchronize()
            self._known_s = time.perf_counter()
        return self._event()

    def _seconds_of(self, mark: torch.Event) -> float:
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


class Mover:
    """Moves tensors off an accelerator in one stream and back in another; on a CPU it copies."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._leaving, self._returning = new_stream(device), new_stream(device)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Have this thread's work go to the stream of what leaves, behind its work so far."""
        if self._leaving is not None:
            self._leaving.wait_stream(current_stream(self.device))
        with on_stream(self._leaving):
            yield

    @contextmanager
    def returning(self, left: Iterable[Event]) -> Iterator[None]:
        """Have it go to the stream of what comes back, behind the moves that these events end."""
        with on_stream(self._returning):
            for event in left:
                wait_event(self.device, event)
            yield

    def away(self, tensor: Tensor, target: torch.device) -> tuple[Tensor, Event]:
        """Start a move to the host (pinned memory) or another device; return the event it ends."""
        if self._leaving is None:
            return tensor.clone(), None
        there = keep_for_current_stream(tensor).to(target, non_blocking=True, copy=True)
        return there, record_event(self.device)

    def back(self, there: Tensor) -> tuple[Tensor, Event]:
        """Start the move back of what has been moved; return the event that ends it."""
        if self._returning is None:
            return there, None
        here = there.to(self.device, non_blocking=True, copy=True)
        return here, record_event(self.device)
