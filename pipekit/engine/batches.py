"""Batches cut into microbatches, handed to the workers that need them."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from pipekit.devices import ThreadStreams, record_events, wait_events
from pipekit.layers.seeded import Undisturbed
from pipekit.schedules import Op, Repeated, Step, distinct
from pipekit.trees import Tree, leaves, refill

Shapes = tuple[tuple[int, ...], ...]


class Batch(NamedTuple):
    """A batch on its way into the pipeline.

    Attributes:
        input: what the first layer gets, or None for workers that do not run it.
        target: what the loss gets, or None likewise.
        rows: how many examples it has.
        row_shapes: for each tensor of the input, the shape of a row.
        parts: into how many microbatches it is cut; their rows differ by at most 1.
    """

    input: Tree
    target: Tree
    rows: int
    row_shapes: Shapes
    parts: int

    @property
    def microbatch_rows(self) -> list[int]:
        """Rows of each microbatch."""
        least, more = divmod(self.rows, self.parts)
        return [least + (part < more) for part in range(self.parts)]


def read_batch(batch: Any, parts: int, number: int) -> Batch:
    """Check what the user gave as a batch.

    Args:
        batch: a pair (input, target), each a tensor or a structure of tensors [rows, ...].
        parts: microbatches to make of it.
        number: the batch's place in the run, for messages.

    Raises:
        ValueError: it is not a pair, its tensors differ in rows, or it has fewer rows than parts.
        TypeError: input or target hold something that is not a tensor.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(f"batch {number} is not a pair (input, target)")
    inputs, targets = leaves(batch[0]), leaves(batch[1])
    counts = {len(tensor) if tensor.dim() else None for tensor in (*inputs, *targets)}
    rows = next(iter(counts), None)
    if len(counts) != 1 or rows is None:
        raise ValueError(
            f"batch {number}: all tensors of input and target must have the same first dimension, "
            f"the rows; here they are {[tuple(t.shape) for t in (*inputs, *targets)]}"
        )
    if rows == 0:
        raise ValueError(f"batch {number} is empty: leave out batches without rows")
    if rows < parts:
        raise ValueError(
            f"batch {number} has {rows} rows for {parts} microbatches: use larger batches, fewer "
            f"microbatches, or drop the last batch (drop_last=True)"
        )
    return Batch(batch[0], batch[1], rows, tuple(tuple(t.shape[1:]) for t in inputs), parts)


def read_rest(batches: Iterator[Any], parts: Sequence[int]) -> Iterator[Batch]:
    """Yield the batches from the second on.

    Raises:
        ValueError: a batch cannot be read, or there are fewer than the batches' length promised.
    """
    for number, microbatches in enumerate(parts, start=1):
        try:
            batch = next(batches)
        except StopIteration:
            raise ValueError(
                f"the batches ended after {number}, though their len() is {len(parts) + 1}"
            ) from None
        yield read_batch(batch, microbatches, number)


class Pieces(dict[int, Tree]):
    """A structure of tensors that is cut already, by the numbers of the microbatches in a batch.

    Those that nobody here takes are left out.
    """


def split(tree: Tree, parts: int) -> list[Tree]:
    """Cut a structure of tensors [rows, ...] along the rows, as evenly as can be."""
    if isinstance(tree, Pieces):
        return [tree.get(part) for part in range(parts)]
    if isinstance(tree, Tensor):
        return list(torch.tensor_split(tree, parts))
    pieces = [torch.tensor_split(tensor, parts) for tensor in leaves(tree)]
    return [refill(tree, [piece[part] for piece in pieces]) for part in range(parts)]


class Needs(NamedTuple):
    """The microbatches of which a worker takes the inputs, and the targets."""

    inputs: frozenset[int]
    targets: frozenset[int]

    @classmethod
    def of(cls, *workers: Sequence[Step]) -> Self:
        """Return what the steps of workers need: the first stage inputs, the last one targets."""
        inputs, targets = set[int](), set[int]()
        for steps in workers:
            forwards = [step for step in distinct(steps) if step.task.op is Op.FORWARD]
            inputs |= _numbers(steps, [step for step in forwards if not step.receives])
            targets |= _numbers(steps, [step for step in forwards if not step.sends])
        return cls(frozenset(inputs), frozenset(targets))


def _numbers(pattern: Sequence[Step], steps: Iterable[Step]) -> set[int]:
    """Return the microbatches of steps that come as often as the pattern's."""
    first = {step.task.microbatch for step in steps}
    if not isinstance(pattern, Repeated):
        return first
    shifts = range(0, pattern.times * pattern.microbatches, pattern.microbatches)
    return {number + shift for shift in shifts for number in first}


class Feed:
    """Batches read one by one, as the workers come to need them.

    Whoever comes first reads the next batch.

    Args:
        batches: the run's batches.
        needs: what the workers here take.
        caller: the streams of the thread that the batches would be read in, were it not busy:
            what they are made of may be on its way there.
        count: how many count in a target, if the loss is a mean over these and not over rows.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        needs: Needs,
        caller: ThreadStreams | None = None,
        count: Callable[[Tree], float] | None = None,
    ) -> None:
        self._batches: Iterator[Batch] = iter(batches)
        self._needs, self._caller = needs, caller or ThreadStreams()
        self._count = count
        self._lock = threading.Lock()
        self._inputs: dict[int, tuple[Tree, Sequence[torch.Event]]] = {}
        self._targets: dict[int, tuple[tuple[Tree, float], Sequence[torch.Event]]] = {}
        self.rows: list[int] = []
        self.shapes: list[Shapes] = []

    def input(self, k: int) -> Tree:
        """Return the input of microbatch ``k``, once."""
        self.read_to(k)
        tree, made = self._inputs.pop(k)
        wait_events(leaves(tree), made)
        return tree

    def target(self, k: int) -> tuple[Tree, float]:
        """Return the target and the weight of microbatch ``k``, once."""
        self.read_to(k)
        (tree, weight), made = self._targets.pop(k)
        wait_events(leaves(tree), made)
        return tree, weight

    def read_to(self, k: int) -> None:
        """Read batches until microbatch ``k`` is here."""
        while len(self.rows) <= k:
            with self._lock:
                if len(self.rows) <= k:
                    self._read()

    def knows(self, k: int) -> bool:
        """Return whether microbatch ``k`` is here."""
        return len(self.rows) > k

    def _read(self) -> None:
        # A data loader that shuffles or augments draws from the generator that layers borrow.  It
        # takes turns with them, and not the whole time: it may run layers itself, in threads.
        with Undisturbed(), self._caller.entered():
            batch = next(self._batches)
            made = record_events(leaves([t for t in batch[:2] if t is not None]))
        rows, first = batch.microbatch_rows, len(self.rows)
        here = range(first, first + batch.parts)
        if not self._needs.inputs.isdisjoint(here):
            inputs = split(batch.input, batch.parts)
            self._keep(self._inputs, self._needs.inputs, here, inputs, made)
        if not self._needs.targets.isdisjoint(here):
            with self._caller.entered():
                weights = self._weights(batch)
            parts = list(zip(split(batch.target, batch.parts), weights, strict=True))
            self._keep(self._targets, self._needs.targets, here, parts, made)
        self.shapes += [tuple((n, *shape) for shape in batch.row_shapes) for n in rows]
        self.rows += rows

    def _weights(self, batch: Batch) -> list[float]:
        """Return what each microbatch's loss is multiplied by, to add up to that of the batch."""
        if self._count is None:
            return [rows / batch.rows for rows in batch.microbatch_rows]
        counted = self._count(batch.target)
        if not counted:
            raise ValueError(
                "a batch has nothing that the loss counts: leave it out, its mean is undefined"
            )
        return [1 / counted] * batch.parts

    @staticmethod
    def _keep(
        kept: dict[int, Any],
        needed: frozenset[int],
        numbers: range,
        parts: Sequence[Any],
        made: Sequence[torch.Event],
    ) -> None:
        pairs = zip(numbers, parts, strict=True)
        kept.update((k, (part, made)) for k, part in pairs if k in needed)
