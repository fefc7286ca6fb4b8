"""The only module that talks to accelerators.

It does so through PyTorch's interface for all kinds of them (``torch.accelerator``,
``torch.Stream``, ``torch.Event``, ``torch.get_device_module``), so that every kind takes the same
lines.  Every function is given the device: the user named it, or a tensor lies on it.

On a CPU a call returns when its work is done.  There a stream and an event are None, and to wait
for one, or to copy, does nothing.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, islice
from typing import Any, Protocol

import torch
from torch import Tensor

from pipekit.trees import Tree, tree_map

CPU = torch.device("cpu")


# --- which devices there are


def resolve(device: torch.device | str) -> torch.device:
    """Return a device with its index; an accelerator without one is the thread's current one.

    Raises:
        ValueError: there is no such device, or nothing can be computed on it.
    """
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{device!r} is no device: say 'cpu', or 'cuda:0'") from error
    if named.type == "cpu":
        return CPU
    count = device_count(named.type)
    if (named.index or 0) >= count:
        here = f"{count} of that kind are here" if count else "PyTorch finds none of that kind here"
        raise ValueError(f"{named} does not exist: {here}")
    if named.index is not None:
        return named
    return torch.device(named.type, torch.get_device_module(named.type).current_device())


def resolve_for_workers(
    devices: Sequence[torch.device | str] | None, workers: int
) -> list[torch.device]:
    """Return a device for each worker.

    Args:
        devices: those that the user named; None: the accelerators in turn, or the CPU if there are
            none.
        workers: how many there are.

    Raises:
        ValueError: there are more or fewer devices than workers, one does not exist, or they are of
            several kinds.
    """
    if devices is None:
        return list(islice(cycle(accelerators() or [CPU]), workers))
    if len(devices) != workers:
        raise ValueError(
            f"devices names {len(devices)} devices for {workers} workers: name one for each (the "
            f"same one may stand there several times)"
        )
    resolved = [resolve(device) for device in devices]
    if len(kinds := sorted({device.type for device in resolved})) > 1:
        raise ValueError(
            f"devices are of several kinds ({', '.join(kinds)}), between which workers pass "
            f"nothing: name devices of one kind"
        )
    return resolved


def accelerators() -> list[torch.device]:
    """Return all accelerators that PyTorch can use here, of its preferred kind."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    return [] if kind is None else [torch.device(kind.type, i) for i in range(device_count(kind))]


def is_accelerator(device: torch.device) -> bool:
    """Return whether a device computes by itself: neither the CPU nor "meta", shapes only, does."""
    return device.type not in ("cpu", "meta")


def device_count(kind: torch.device | str) -> int:
    """Return how many devices of a kind PyTorch can use here."""
    try:
        return int(torch.get_device_module(kind).device_count())
    except (RuntimeError, AttributeError):  # a kind that nothing here is of, or not devices at all
        return 0


def name_of(device: torch.device) -> str:
    """Return what an accelerator is called, such as "NVIDIA H200"."""
    return str(torch.get_device_module(device).get_device_name(device))


def memory_bytes(device: torch.device) -> int:
    """Return how much memory an accelerator has."""
    _, total = torch.accelerator.get_memory_info(device)
    return total


# --- streams and events


def new_stream(device: torch.device) -> torch.Stream | None:
    """Return a stream of a device's."""
    return torch.Stream(device) if is_accelerator(device) else None


def on_stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Return a context in which a stream and its device are this thread's current ones."""
    return nullcontext() if stream is None else stream


def record_event(device: torch.device) -> torch.Event | None:
    """Return an event at this point of this thread's work on a device."""
    return current_stream(device).record_event() if is_accelerator(device) else None


def wait_event(device: torch.device, event: torch.Event | None) -> None:
    """Let this thread's later work on a device wait for an event; this thread goes on."""
    if event is not None:
        current_stream(device).wait_event(event)


def wait_stream(stream: torch.Stream | None) -> None:
    """Let this thread's later work on a stream's device wait for what the stream has been given."""
    if stream is not None:
        current_stream(stream.device).wait_stream(stream)


def synchronize(device: torch.device) -> None:
    """Wait until all work that this thread has given a device is done."""
    if is_accelerator(device):
        current_stream(device).synchronize()


def current_stream(device: torch.device) -> torch.Stream:
    """Return an accelerator's stream that this thread's work on it goes to."""
    return torch.accelerator.current_stream(device)


def keep_for_current_stream(tensor: Tensor) -> Tensor:
    """Return a tensor from another stream, whose memory now also waits for this thread's stream.

    The allocator gives freed memory to the stream that it came from, at once; what another stream
    has still to do with it, it must be told.
    """
    if is_accelerator(tensor.device):
        tensor.record_stream(current_stream(tensor.device))
    return tensor


# --- copies


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Return a structure of tensors on an accelerator; for a CPU the structure itself."""
    if not is_accelerator(device):
        return tree
    return tree_map(lambda t: t.to(device, non_blocking=True), tree)


class Copier:
    """Copies what a worker has computed on an accelerator to those of other workers.

    Args:
        device: the worker's.
        beside: copy beside the worker's computing, in a stream of its own (torchgpipe, section
            3.2.3), or else in the stream that computes.
    """

    def __init__(self, device: torch.device, beside: bool = True) -> None:
        self._device = device
        self._leaving = torch.Stream(device) if beside else None
        self._arriving: dict[torch.device, torch.Stream] = {}

    def copy(self, tree: Tree, target: torch.device) -> tuple[Tree, torch.Event]:
        """Start a copy of a structure of tensors; return it, and the event that ends it.

        Tensors that lie on the host (lengths, say) stay there.
        """
        compute = current_stream(self._device)
        if target == self._device:
            return tree, compute.record_event()
        leaving = self._leaving or compute
        leaving.wait_stream(compute)
        # PyTorch has the copy wait for the target's current stream too, and the other way round:
        # that of the target's default stream would hold up whatever computes there.
        if target not in self._arriving:
            self._arriving[target] = torch.Stream(target)
        with self._arriving[target], leaving:
            copied = tree_map(lambda tensor: self._copied(tensor, target), tree)
            ready = leaving.record_event()
        return copied, ready

    def _copied(self, tensor: Tensor, target: torch.device) -> Tensor:
        if not is_accelerator(tensor.device):
            return tensor
        return keep_for_current_stream(tensor).to(target, non_blocking=True)


# --- times


class Clock:
    """Marks points of a device's work, and turns them into seconds once it is done.

    On a CPU a mark is the time; on an accelerator, where calls return before the work is done, it
    is an event in this thread's stream.

    Args:
        device: whose work is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._timed_by_events = is_accelerator(device)
        if self._timed_by_events:
            current_stream(device).synchronize()
            self._known = self._event()
            self._known.synchronize()
            self._known_s = time.perf_counter()

    def now(self) -> object:
        """Return a mark at this point of the device's work."""
        return self._event() if self._timed_by_events else time.perf_counter()

    def seconds(self, mark: object) -> float:
        """Return a mark's time in seconds, on the scale of ``time.perf_counter()``.

        An accelerator is waited for, until it has come to the mark.
        """
        if isinstance(mark, float):
            return mark
        assert isinstance(mark, torch.Event)
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


# --- random numbers


class RandomState(Protocol):
    """The random numbers that operators draw when they are given no generator."""

    def get_state(self) -> Tensor:
        """Return the state, to be set again."""

    def set_state(self, state: Tensor) -> object:
        """Draw from here on as from a state that was got."""

    def manual_seed(self, seed: int) -> object:
        """Draw from here on as after ``torch.manual_seed(seed)``."""


def random_states(device: torch.device) -> list[RandomState]:
    """Return whatever operators on a device may draw from: the host's, and the device's own."""
    host: RandomState = torch.default_generator
    return [host, _AcceleratorRandomState(device)] if is_accelerator(device) else [host]


class _AcceleratorRandomState:
    """That of an accelerator's default generator, for which PyTorch has no name that all share."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)

    def get_state(self) -> Tensor:
        state: Tensor = self._module.get_rng_state(self._device)
        return state

    def set_state(self, state: Tensor) -> None:
        self._module.set_rng_state(state, self._device)

    def manual_seed(self, seed: int) -> None:
        self.set_state(torch.Generator(self._device).manual_seed(seed).get_state())


def random_states_put_back(device: torch.device) -> AbstractContextManager[None]:
    """Return a context after which operators draw what they would have drawn without it."""
    if not is_accelerator(device):
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device.index], device_type=device.type)


# --- memory


def reset_peak_bytes(device: torch.device) -> None:
    """Forget what a device's allocator gave out at most; workers may share it.

    Workers on the same device may call it one after another: what one of them holds already goes on
    counting.
    """
    if is_accelerator(device):
        torch.accelerator.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the most bytes that a device's allocator gave out at once; None on a CPU.

    They are those of all workers there since :func:`reset_peak_bytes`.  They are more than the
    tensors of a stage: what has arrived and waits, and what operators use for a moment, count too.
    """
    return torch.accelerator.max_memory_allocated(device) if is_accelerator(device) else None


# --- processes


def set_device(device: torch.device) -> None:
    """Make an accelerator this thread's current one: what names none by number means this one."""
    if is_accelerator(device):
        torch.accelerator.set_device_index(device)


def process_group_backend(device: torch.device) -> str:
    """Return by what processes on devices of this kind reach one another, for torch.distributed.

    Notes about tensors travel between hosts by gloo, and tensors between accelerators by what these
    have of their own, such as NCCL.
    """
    if not is_accelerator(device):
        return "gloo"
    own = torch.distributed.get_default_backend_for_device(device)
    return f"cpu:gloo,{device.type}:{own}"
