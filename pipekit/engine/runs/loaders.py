"""What is known of a user's loader: whether its next batch may be in the memory of this one."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, default_collate

from pipekit.engine.batches import Batch
from pipekit.engine.entries import copied

Read = Callable[[Any, int, int], Batch]
"""Checks a batch of the user's, given its microbatches and its number."""


def stacks(batches: Any) -> bool:
    """Return whether batches are stacked from rows in new tensors, each time anew."""
    return isinstance(batches, DataLoader) and batches.collate_fn is default_collate


def kept_apart(batches: Any, read: Read) -> Read:
    """Return what reads batches into memory of their own, if the next ones may overwrite them.

    A loader may fill one buffer again and again, while microbatches of several batches are in
    flight.  A list has its batches already, and a ``DataLoader`` stacks rows into new tensors.
    """
    if stacks(batches) or isinstance(batches, (list, tuple)):
        return read
    return lambda batch, parts, number: read(copied(batch), parts, number)
