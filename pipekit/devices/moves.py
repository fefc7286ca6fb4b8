"""Moves of tensors off a device and back, for which neither it nor a thread stops."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pipekit.devices.streams import (
    Event,
    current_stream,
    keep_for_current_stream,
    new_stream,
    on_stream,
    record_event,
    wait_event,
)


class Mover:
    """Moves tensors off an accelerator in one stream and back in another; on a CPU it copies.

    Attributes:
        device: off which it moves them.
    """

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
