"""Batches cut into microbatches, handed to the workers that need them."""

import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipekit.engine.seeded import RNG_LOCK
from pipekit.engine.trees import Tree, leaves, refill


class Microbatch(NamedTuple):
    """A microbatch on its way into the pipeline.

    Attributes:
        input: what the first layer gets, or None for a worker that does not run it.
        target: what the loss gets, or None likewise.
        weight: its rows as a fraction of its batch's.
        rows: how many examples it has.
        shapes: the shapes of the input's tensors; messages between stages that carry the same
            ``shapes`` have the same form.
    """

    input: Tree
    target: Tree
    weight: float
    rows: int
    shapes: tuple[tuple[int, ...], ...]


def split(batch: Any, parts: int, number: int) -> list[Microbatch]:
    """Cut a batch along dimension 0 into ``parts`` microbatches whose rows differ by at most 1.

    Args:
        batch: a pair (input, target), each a tensor or a structure of tensors [rows, ...].
        parts: microbatches to make.
        number: the batch's place in the run, for messages.

    Raises:
        ValueError: it is not a pair, or has fewer rows than parts.
        TypeError: input or target hold something that is not a tensor.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(f"batch {number} is not a pair (input, target)")
    counts = {len(tensor) for tensor in leaves(batch[0]) if tensor.dim()}
    if len(counts) != 1:
        raise ValueError(
            f"batch {number}: the input's tensors must share their first dimension, the rows"
        )
    rows = counts.pop()
    if rows == 0:
        raise ValueError(f"batch {number} is empty: leave out batches without rows")
    if rows < parts:
        raise ValueError(
            f"batch {number} has {rows} rows for {parts} microbatches: use larger batches, fewer "
            f"microbatches, or drop the last batch (drop_last=True)"
        )
    inputs = _split_tree(batch[0], parts)
    targets = _split_tree(batch[1], parts)
    result = []
    for x, y in zip(inputs, targets, strict=True):
        tensors = list(leaves(x))
        shapes = tuple(tuple(t.shape) for t in tensors)
        result.append(Microbatch(x, y, len(tensors[0]) / rows, len(tensors[0]), shapes))
    return result


def _split_tree(tree: Tree, parts: int) -> list[Tree]:
    if isinstance(tree, Tensor):
        return list(torch.tensor_split(tree, parts))
    pieces = [torch.tensor_split(tensor, parts) for tensor in leaves(tree)]
    return [refill(tree, [piece[part] for piece in pieces]) for part in range(parts)]


class Feed:
    """Batches read one by one, as the workers come to need them.

    The first stage takes inputs, the last takes targets; whoever comes first reads the next batch.

    Args:
        batches: for each batch, its microbatches.
        inputs: whether anybody here takes inputs.
        targets: whether anybody here takes targets.
    """

    def __init__(
        self, batches: Iterable[list[Microbatch]], inputs: bool = True, targets: bool = True
    ) -> None:
        self._batches: Iterator[list[Microbatch]] = iter(batches)
        self._keep_inputs, self._keep_targets = inputs, targets
        self._lock = threading.Lock()
        self._inputs: dict[int, Tree] = {}
        self._targets: dict[int, tuple[Tree, float]] = {}
        self.rows: list[int] = []
        self.shapes: list[tuple[tuple[int, ...], ...]] = []

    def input(self, k: int) -> Tree:
        """Return the input of microbatch ``k``, once."""
        self.read_to(k)
        return self._inputs.pop(k)

    def target(self, k: int) -> tuple[Tree, float]:
        """Return the target and the weight of microbatch ``k``, once."""
        self.read_to(k)
        return self._targets.pop(k)

    def read_to(self, k: int) -> None:
        """Read batches until microbatch ``k`` is here."""
        while len(self.rows) <= k:
            with self._lock:
                if len(self.rows) <= k:
                    self._read()

    def _read(self) -> None:
        # A data loader that shuffles or augments draws from the generator that layers borrow.
        with RNG_LOCK:
            batch = next(self._batches)
        for number, microbatch in enumerate(batch, start=len(self.rows)):
            if self._keep_inputs:
                self._inputs[number] = microbatch.input
            if self._keep_targets:
                self._targets[number] = microbatch.target, microbatch.weight
        self.shapes += [microbatch.shapes for microbatch in batch]
        self.rows += [microbatch.rows for microbatch in batch]
