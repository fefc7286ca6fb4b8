"""Batches cut into microbatches, handed to the workers that need them."""

import sys
import threading
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from pipekit.devices import ThreadStreams, record_events, wait_events
from pipekit.engine.entries import Plain, parted, pieces
from pipekit.engine.transport import BeyondStop
from pipekit.layers.seeded import drawing_undisturbed
from pipekit.schedules import Op, Step, Steps
from pipekit.trees import Tree, leaves, refill

Shapes = tuple[tuple[int, ...], ...]


class Batch(NamedTuple):
    """A batch on its way into the pipeline.

    Attributes:
        input: of the first layer, or None for workers that do not run it.
        target: of the loss, or None likewise.
        rows: the number of examples.
        row_shapes: for each tensor of the input, the shape of a row.
        parts: the number of microbatches; their rows differ by at most 1.
        plain: all that the target holds beside tensors, or None.
        said: of a target that is a whole batch, which entries the user has said to be rows, and
            which not; None: the target is one entry.
        chunks: of each sequence, a row each (:mod:`pipekit.engine.runs.chunks`).
        kept: entries of the input, by name or place, that have no rows though as many elements.
    """

    input: Tree
    target: Tree
    rows: int
    row_shapes: Shapes
    parts: int
    plain: Plain | None = None
    said: Mapping[Any, bool] | None = None
    kept: Collection[Any] = ()
    chunks: int = 1

    @property
    def microbatch_rows(self) -> list[int]:
        """Rows of each microbatch; with fewer rows than microbatches the first get none."""
        return part_sizes(self.rows, self.parts)

    @property
    def whole_target(self) -> Any:
        """The second argument of the loss, for all rows."""
        return self.plain.joined(self.target) if self.plain else self.target

    def cut_input(self) -> list[Tree]:
        """Return the model's input for each microbatch."""
        parts, whole = split(self.input, self.parts, self.rows), self.input
        if isinstance(whole, dict):
            return [part | {name: whole[name] for name in self.kept} for part in parts]
        if self.kept:
            places = range(len(whole))
            return [tuple((whole if n in self.kept else x)[n] for n in places) for x in parts]
        return parts

    def cut_target(self) -> list[Any]:
        """Return the second argument of the loss for each microbatch."""
        return pieces(self.whole_target, self.microbatch_rows, self.said)


def split(tree: Tree, parts: int, rows: int | None = None) -> list[Tree]:
    """Cut a structure of tensors [rows, ...] along the rows, as evenly as can be.

    Tensors of another length than ``rows`` stay whole in each piece; with None all are cut.
    """
    if isinstance(tree, Tensor):
        return _cut(tree, parts, rows)
    pieces = [_cut(tensor, parts, rows) for tensor in leaves(tree)]
    return [refill(tree, [piece[part] for piece in pieces]) for part in range(parts)]


def _cut(tensor: Tensor, parts: int, rows: int | None) -> list[Tensor]:
    if rows is None or (tensor.dim() and len(tensor) == rows):
        return list(torch.split(tensor, part_sizes(len(tensor), parts)))
    return [tensor] * parts


def part_sizes(rows: int, parts: int) -> list[int]:
    """Return the rows of each part; with fewer rows than parts the first get none.

    The last one is never empty, since its passes do the work at the end of a batch.
    """
    least, more = divmod(rows, parts)
    sizes = [least + (part < more) for part in range(parts)]
    return sizes if least else sizes[::-1]


class End:
    """Stands for a batch: the run ends before it, though its table has more."""


class FedTarget(NamedTuple):
    """The last stage's share of a microbatch: tensors, weight of its loss, other entries."""

    tree: Tree
    weight: float
    plain: Plain | None


@dataclass(frozen=True)
class _Microbatches:
    """Numbers of microbatches, perhaps endless.

    Attributes:
        head: the first ones.
        periods: for each list of repeating steps, its number of microbatches, and the remainders
            modulo that number of the microbatches that follow.
    """

    head: frozenset[int]
    periods: tuple[tuple[int, frozenset[int]], ...]

    def __contains__(self, microbatch: object) -> bool:
        assert isinstance(microbatch, int)
        return microbatch in self.head or any(
            microbatch % size in numbers for size, numbers in self.periods
        )

    @classmethod
    def of(cls, workers: Sequence[Steps], is_meant: Callable[[Step], bool]) -> Self:
        """Return the microbatches of the forwards for which ``is_meant`` holds."""

        def numbers(steps: Iterable[Step]) -> list[int]:
            return [
                step.task.microbatch
                for step in steps
                if step.task.op is Op.FORWARD and is_meant(step)
            ]

        return cls(
            frozenset(number for steps in workers for number in numbers(steps.head)),
            tuple(
                (steps.microbatches, frozenset(k % steps.microbatches for k in repeated))
                for steps in workers
                if (repeated := numbers(steps.period))
            ),
        )


class Needs(NamedTuple):
    """The microbatches whose inputs, and whose targets, a worker takes."""

    inputs: Container[int]
    targets: Container[int]

    @classmethod
    def of(cls, *workers: Steps) -> Self:
        """Return the needs of workers: the first stage takes inputs, the last one targets."""
        return cls(
            _Microbatches.of(workers, lambda step: not step.receives),
            _Microbatches.of(workers, lambda step: not step.sends),
        )


EVERYTHING = Needs(range(sys.maxsize), range(sys.maxsize))
"""The needs of all workers together."""


class Feed:
    """Reads batches one by one; the first worker that needs the next batch reads it.

    Args:
        batches: the run's batches.
        needs: of the workers here.
        caller: the streams of the thread in which the user made the batches, if it has any: their
            tensors may still be on the way there.
        count: counts the entries of a target, if the loss is a mean over these and not over rows.
        end: is called with the first microbatch after the run, if it ends early.
    """

    def __init__(
        self,
        batches: Iterable[Batch | End],
        needs: Needs,
        caller: ThreadStreams | None = None,
        count: Callable[[Tree], float] | None = None,
        end: Callable[[int], None] | None = None,
    ) -> None:
        self._batches = iter(batches)
        self._needs, self._in_caller = needs, caller.entered if caller else nullcontext
        self._count, self._end, self._ended = count, end, False
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._inputs: dict[int, tuple[Tree, Sequence[torch.Event]]] = {}
        self._targets: dict[int, tuple[FedTarget, Sequence[torch.Event]]] = {}
        self.rows = array("q")
        self.shapes: list[Shapes] = []
        self._known_shapes: dict[Shapes, Shapes] = {}

    def input(self, k: int) -> Tree:
        """Return the input of microbatch ``k``, once; () if it has no rows."""
        self.read_to(k)
        tree, made = self._inputs.pop(k)
        if made:
            wait_events(leaves(tree), made)
        return tree if self.rows[k] else ()

    def target(self, k: int) -> FedTarget:
        """Return the target of microbatch ``k``, once."""
        self.read_to(k)
        fed, made = self._targets.pop(k)
        if made:
            wait_events(leaves(fed.tree), made)
        return fed

    def read_to(self, k: int) -> None:
        """Read batches until microbatch ``k`` is here.

        Raises:
            BeyondStop: the batches end before it.
            Exception: the error of reading them, to every worker that asks for more.
        """
        while not self.knows(k):
            with self._lock:
                if self.knows(k):  # another has read it meanwhile, and maybe the end as well
                    return
                if self._ended:
                    raise BeyondStop
                if self._error:  # the batches are at their end then, and would say no more
                    raise self._error
                try:
                    self._read()
                except Exception as error:
                    self._error = error
                    raise

    def knows(self, k: int) -> bool:
        """Return whether microbatch ``k`` was read."""
        return len(self.rows) > k

    def _read(self) -> None:
        # A data loader that shuffles or augments draws from the generator that layers borrow.  It
        # takes turns with them, and not the whole time: it may run layers itself, in threads.
        with drawing_undisturbed(), self._in_caller():
            batch = next(self._batches)
            if isinstance(batch, End):
                self._ended = True
                if self._end:
                    self._end(len(self.rows))
                return
            made = record_events(leaves([t for t in batch[:2] if t is not None]))
        rows, first = batch.microbatch_rows, len(self.rows)
        here = range(first, first + batch.parts)
        if any(k in self._needs.inputs for k in here):
            inputs = batch.cut_input()
            self._keep(self._inputs, self._needs.inputs, here, inputs, made)
        if any(k in self._needs.targets for k in here):
            with self._in_caller():
                weights = self._weights(batch)
            cuts = zip(map(parted, batch.cut_target()), weights, strict=True)
            parts = [FedTarget(tensors, weight, plain) for (tensors, plain), weight in cuts]
            self._keep(self._targets, self._needs.targets, here, parts, made)
        found = (tuple((n, *shape) for shape in batch.row_shapes) for n in rows)
        self.shapes += [self._known_shapes.setdefault(each, each) for each in found]
        self.rows.extend(rows)

    def _weights(self, batch: Batch) -> list[float]:
        """Return the factor of each microbatch's loss in the loss of the batch."""
        if self._count is None:
            return [rows / batch.rows for rows in batch.microbatch_rows]
        counted = self._count(batch.whole_target)
        if not counted:
            raise ValueError(
                "a batch has nothing that the loss counts: leave it out, its mean is undefined"
            )
        return [1 / counted] * batch.parts

    @staticmethod
    def _keep(
        kept: dict[int, Any],
        needed: Container[int],
        numbers: range,
        parts: Sequence[Any],
        made: Sequence[torch.Event],
    ) -> None:
        pairs = zip(numbers, parts, strict=True)
        kept.update((k, (part, made)) for k, part in pairs if k in needed)
