"""Batches cut into microbatches, handed to the workers that need them."""

import threading
from array import array
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from pipekit.devices import ThreadStreams, record_events, wait_events
from pipekit.engine.early_stop import BeyondStop
from pipekit.layers.seeded import drawing_undisturbed
from pipekit.schedules import Op, Step, Steps
from pipekit.trees import Tree, leaves, refill

Shapes = tuple[tuple[int, ...], ...]


class Joins(Protocol):
    """What makes a batch whole again that was parted for its way."""

    def joined(self, tensors: Any) -> Any:
        """Return what the loss gets, given its tensors."""


class Batch(NamedTuple):
    """A batch on its way into the pipeline.

    Attributes:
        input: what the first layer gets, or None for workers that do not run it.
        target: what the loss gets, or None likewise.
        rows: how many examples it has.
        row_shapes: for each tensor of the input, the shape of a row.
        parts: into how many microbatches it is cut; their rows differ by at most 1.
        plain: what the loss gets beside the target's tensors, or None.
    """

    input: Tree
    target: Tree
    rows: int
    row_shapes: Shapes
    parts: int
    plain: "Joins | None" = None

    @property
    def microbatch_rows(self) -> list[int]:
        """Rows of each microbatch; if there are fewer than microbatches, the first get none."""
        return part_sizes(self.rows, self.parts)


def split(tree: Tree, parts: int, rows: int | None = None) -> list[Tree]:
    """Cut a structure of tensors [rows, ...] along the rows, as evenly as can be.

    Tensors without ``rows`` rows stay whole in each piece; None: all have them.
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
    """Return the rows of each part; if there are fewer than parts, the first get none.

    The last one is never empty: what is done once a batch is done in its last microbatch.
    """
    least, more = divmod(rows, parts)
    sizes = [least + (part < more) for part in range(parts)]
    return sizes if least else sizes[::-1]


class End:
    """In the place of a batch: the run ends before it, though its table has more."""


class FedTarget(NamedTuple):
    """What the last stage gets of a microbatch beside its activations.

    Attributes:
        tree: tensors.
        weight: of its loss in that of the batch.
        plain: what makes of the tensors what the loss gets; None: they are that.
    """

    tree: Tree
    weight: float
    plain: Joins | None


@dataclass(frozen=True)
class _Microbatches:
    """Numbers of microbatches, maybe without end.

    Attributes:
        head: the first ones.
        periods: of each list of steps that repeats, its microbatches, and the remainders that
            those behind leave when they are divided by them.
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
        """Return the microbatches of the forwards that are meant."""

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
    """The microbatches of which a worker takes the inputs, and the targets."""

    inputs: Container[int]
    targets: Container[int]

    @classmethod
    def of(cls, *workers: Steps) -> Self:
        """Return what the steps of workers need: the first stage inputs, the last one targets."""
        return cls(
            _Microbatches.of(workers, lambda step: not step.receives),
            _Microbatches.of(workers, lambda step: not step.sends),
        )


class Feed:
    """Batches read one by one, as the workers come to need them.

    Whoever comes first reads the next batch.

    Args:
        batches: the run's batches.
        needs: what the workers here take.
        caller: the streams of the thread that the batches would be read in, were it not busy:
            what they are made of may be on its way there.
        count: how many count in a target, if the loss is a mean over these and not over rows.
        end: called with the first microbatch that is no part of the run, if it ends early.
        begin: the first that is.
    """

    def __init__(
        self,
        batches: Iterable[Batch | End],
        needs: Needs,
        caller: ThreadStreams | None = None,
        count: Callable[[Tree], float] | None = None,
        end: Callable[[int], None] | None = None,
        begin: int = 0,
    ) -> None:
        self._batches, self._begin = iter(batches), begin
        self._needs, self._caller = needs, caller or ThreadStreams()
        self._count, self._end, self._ended = count, end, False
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._inputs: dict[int, tuple[Tree, Sequence[torch.Event]]] = {}
        self._targets: dict[int, tuple[FedTarget, Sequence[torch.Event]]] = {}
        self.rows = array("q")
        self.shapes: list[Shapes] = []
        self._known_shapes: dict[Shapes, Shapes] = {}

    def is_empty(self, k: int) -> bool:
        """Return whether microbatch ``k``, which is here, has no rows."""
        return not self.rows[k - self._begin]

    def input(self, k: int) -> Tree:
        """Return the input of microbatch ``k``, once."""
        self.read_to(k)
        tree, made = self._inputs.pop(k)
        wait_events(leaves(tree), made)
        return tree

    def target(self, k: int) -> FedTarget:
        """Return the target of microbatch ``k``, once."""
        self.read_to(k)
        fed, made = self._targets.pop(k)
        wait_events(leaves(fed.tree), made)
        return fed

    def read_to(self, k: int) -> None:
        """Read batches until microbatch ``k`` is here.

        Raises:
            Ended: the batches end before it.
            Exception: what reading them has raised, to everybody who wants more.
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
        """Return whether microbatch ``k`` is here."""
        return self._begin + len(self.rows) > k

    def _read(self) -> None:
        # A data loader that shuffles or augments draws from the generator that layers borrow.  It
        # takes turns with them, and not the whole time: it may run layers itself, in threads.
        with drawing_undisturbed(), self._caller.entered():
            batch = next(self._batches)
            if isinstance(batch, End):
                self._ended = True
                if self._end:
                    self._end(self._begin + len(self.rows))
                return
            made = record_events(leaves([t for t in batch[:2] if t is not None]))
        rows, first = batch.microbatch_rows, self._begin + len(self.rows)
        here = range(first, first + batch.parts)
        if any(k in self._needs.inputs for k in here):
            inputs = split(batch.input, batch.parts, batch.rows)
            self._keep(self._inputs, self._needs.inputs, here, inputs, made)
        if any(k in self._needs.targets for k in here):
            with self._caller.entered():
                weights = self._weights(batch)
            trees = split(batch.target, batch.parts, batch.rows)
            parts = [FedTarget(*each, batch.plain) for each in zip(trees, weights, strict=True)]
            self._keep(self._targets, self._needs.targets, here, parts, made)
        found = (tuple((n, *shape) for shape in batch.row_shapes) for n in rows)
        self.shapes += [self._known_shapes.setdefault(each, each) for each in found]
        self.rows.extend(rows)

    def _weights(self, batch: Batch) -> list[float]:
        """Return what each microbatch's loss is multiplied by, to add up to that of the batch."""
        if self._count is None:
            return [rows / batch.rows for rows in batch.microbatch_rows]
        target = batch.plain.joined(batch.target) if batch.plain else batch.target
        counted = self._count(target)
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
