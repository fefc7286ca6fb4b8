"""The batches of a run, from the user's loader to the workers that need their microbatches."""

import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any, NamedTuple, Self

import torch
from torch.utils.data import DataLoader, default_collate

from pipekit.devices import ThreadStreams, record_events, wait_events
from pipekit.engine.batches import Batch, Shapes, copied
from pipekit.layers.seeded import DrawingUndisturbed
from pipekit.losses.checks import is_mean
from pipekit.losses.losses import MeanOver
from pipekit.schedules import Op, Step, Steps
from pipekit.schedules.lowering.boundaries import PossibleStops
from pipekit.trees import Tree, leaves, tensors_in

Form = tuple[tuple[int, ...], Shapes]
"""The rows of each microbatch of a batch, and the shapes of a row's tensors."""

Read = Callable[[Any, int, int], Batch]
"""Checks a batch of the user's, given its microbatches and its number."""


class StopPoint:
    """The known end of a run, shared by workers: ``microbatch`` is the first after the run.

    The schedule stays whole: a run that ends before a microbatch executes every step of the
    microbatches before it, and skips all others.
    """

    def __init__(self) -> None:
        self.microbatch = sys.maxsize
        self._lock = threading.Lock()

    def __call__(self) -> int:
        """Return the first microbatch after the run, as far as it is known now."""
        return self.microbatch

    def at(self, microbatch: int) -> None:
        """End the run before a microbatch, unless it ends earlier."""
        with self._lock:  # workers may fail at the same time, in different batches
            self.microbatch = min(self.microbatch, microbatch)


class BeyondStop(Exception):
    """The run ends before the microbatch that a worker waits for."""


class End:
    """Stands for a batch: the run ends before it, though its table has more."""


def stacks(batches: Any) -> bool:
    """Return whether batches are stacked from rows in new tensors, each time anew."""
    return isinstance(batches, DataLoader) and batches.collate_fn is default_collate


def kept_apart(batches: Any, read: Read) -> Read:
    """Return what reads batches into memory of their own, if the next ones may overwrite them.

    A loader may fill one buffer again and again, while several batches are in flight.
    """
    if stacks(batches) or isinstance(batches, (list, tuple)):
        return read
    return lambda batch, parts, number: read(copied(batch), parts, number)


class BatchSource:
    """The batches of a run, which may end before its table.

    ``first`` was read and checked.  ``total`` is their exact number; None: as many as there are,
    but data may end only where updates are whole: before one of ``ends``.
    Errors of the data reach the worker that reads, where the run may not end with whole updates.
    """

    def __init__(
        self,
        first: Batch,
        rest: Iterator[Any],
        each_batch: Callable[[], Iterator[range]],
        total: int | None,
        possible_stops: PossibleStops,
        ends: PossibleStops,
        read: Read,
    ) -> None:
        self._first, self._rest, self.possible_stops = first, rest, possible_stops
        self._ends = ends
        self.each_batch, self.total = each_batch, total
        self._read = read
        self._stopped = False
        self.error: BaseException | None = None  # of the batch before which the run ends
        self.rows = array("q")  # of each batch that was read

    def stop(self, error: BaseException | None = None) -> None:
        """Read no more batches: the run ends at the next possible stop."""
        self._stopped, self.error = True, self.error or error

    def __iter__(self) -> Iterator[Batch | End]:
        """Yield the batches, and an :class:`End` where the run ends early."""
        for number, microbatches in enumerate(self.each_batch()):
            first = microbatches.start
            if number == self.total or (self._stopped and first in self.possible_stops):
                yield End()
                return
            batch = None
            try:
                batch = self._next(number, microbatches)
            except Exception as error:
                if first not in self.possible_stops:
                    raise
                self.error = error
            if batch is None:
                yield End()
                return
            self.rows.append(batch.rows // batch.chunks)
            yield batch

    def exhaust(self, batches: Iterable[Any]) -> None:
        """Read on to the known end, as a plain loop does: a loader's sampler may draw there."""
        if isinstance(batches, Iterator):  # it may have more, for the next call
            return
        if len(self.rows) == self.total:
            next(self._rest, None)

    def _next(self, number: int, microbatches: range) -> Batch | None:
        if number == 0:
            return self._first
        try:
            batch = next(self._rest)
        except StopIteration:
            told = f"though their len() is {self.total}"
            if self.total is None:
                if microbatches.start in self._ends:
                    return None
                told = "within an update of several: pass as many steps, or none for all"
            raise ValueError(f"the batches ended after {number}, {told}") from None
        return self._read(batch, len(microbatches), number)


class _Microbatches:
    """The microbatches of a worker's forwards for which ``is_meant`` holds, perhaps endless."""

    def __init__(self, steps: Steps, is_meant: Callable[[Step], bool]) -> None:
        def numbers(steps: Iterable[Step]) -> frozenset[int]:
            each = (step for step in steps if step.task.op is Op.FORWARD and is_meant(step))
            return frozenset(step.task.microbatch for step in each)

        self._head, self._size = numbers(steps.head), steps.microbatches
        self._repeated = frozenset(k % self._size for k in numbers(steps.period))

    def __contains__(self, microbatch: object) -> bool:
        assert isinstance(microbatch, int)
        if microbatch in self._head:
            return True
        return bool(self._repeated) and microbatch % self._size in self._repeated

    def __bool__(self) -> bool:
        return bool(self._head or self._repeated)


class Needs(NamedTuple):
    """The microbatches whose inputs, and whose targets, a worker takes."""

    inputs: Container[int]
    targets: Container[int]

    @classmethod
    def of(cls, steps: Steps) -> Self:
        """Return the needs of a worker: the first stage takes inputs, the last one targets."""
        return cls(
            _Microbatches(steps, lambda step: not step.receives),
            _Microbatches(steps, lambda step: not step.sends),
        )


EVERYTHING = Needs(range(sys.maxsize), range(sys.maxsize))
"""The needs of all workers together."""


class Feed:
    """Reads batches one by one; the first worker that needs the next batch reads it.

    ``needs`` are those of the workers here; ``caller`` has the streams, if any, in which the user
    made the batches.  ``end`` is called with the first microbatch after a run that ends early.
    """

    def __init__(
        self,
        batches: Iterable[Batch | End],
        loss: Callable[..., Any],
        needs: Needs = EVERYTHING,
        caller: ThreadStreams | None = None,
        end: Callable[[int], None] | None = None,
    ) -> None:
        self._batches, self._loss = iter(batches), loss
        self._needs, self._caller = needs, caller
        self._end, self._ended = end, False
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._inputs: dict[int, tuple[Tree, Sequence[torch.Event]]] = {}
        self._targets: dict[int, tuple[Any, float, Sequence[torch.Event]]] = {}
        self._read_parts = 0  # microbatches
        self._forms: list[tuple[int, Form]] = []  # with the first microbatch that has it
        self._known: dict[Form, Form] = {}  # equal ones are kept once

    def input(self, k: int) -> Tree:
        """Return the input of microbatch ``k``, once; () if it has no rows."""
        self.read_to(k)
        tree, made = self._inputs.pop(k)
        if made:
            wait_events(leaves(tree), made)
        return tree if self._form(k)[0] else ()

    def target(self, k: int) -> tuple[Any, float]:
        """Return the target of microbatch ``k`` and the weight of its loss, once."""
        self.read_to(k)
        target, weight, made = self._targets.pop(k)
        if made:
            wait_events(tensors_in(target), made)
        return target, weight

    def shapes(self, k: int) -> Shapes:
        """Return the shapes of the tensors in the input of microbatch ``k``."""
        self.read_to(k)
        rows, shapes = self._form(k)
        return tuple((rows, *shape) for shape in shapes)

    def rows(self) -> list[int]:
        """Return the rows of each microbatch that was read."""
        return [self._form(k)[0] for k in range(self._read_parts)]

    def _form(self, k: int) -> tuple[int, Shapes]:
        first, (sizes, shapes) = self._forms[bisect_right(self._forms, k, key=itemgetter(0)) - 1]
        return sizes[(k - first) % len(sizes)], shapes

    def read_to(self, k: int) -> None:
        """Read batches until microbatch ``k`` is here, or raise BeyondStop.

        An error of reading them is raised to every worker that asks for more.
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
        return self._read_parts > k

    def _read(self) -> None:
        # A data loader that shuffles or augments draws from the generator that layers borrow.  It
        # takes turns with them, and not the whole time: it may run layers itself, in threads.
        caller = self._caller
        with DrawingUndisturbed(), caller.entered() if caller else nullcontext():
            batch = next(self._batches)
            if isinstance(batch, End):
                self._ended = True
                if self._end:
                    self._end(self._read_parts)
                return
            made = record_events(tensors_in(batch[:2])) if caller else ()
        first = self._read_parts
        here = range(first, first + len(batch.sizes))
        if any(k in self._needs.inputs for k in here):
            for k, part in zip(here, batch.cut_input(), strict=True):
                if k in self._needs.inputs:
                    self._inputs[k] = part, made
        if any(k in self._needs.targets for k in here):
            with caller.entered() if caller else nullcontext():
                weights = self._weights(batch)
            for k, target, weight in zip(here, batch.cut_target(), weights, strict=True):
                if k in self._needs.targets:
                    self._targets[k] = target, weight, made
        form = tuple(batch.sizes), batch.row_shapes
        form = self._known.setdefault(form, form)
        if not self._forms or self._forms[-1][1] is not form:
            self._forms.append((first, form))
        self._read_parts += len(batch.sizes)

    def _weights(self, batch: Batch) -> list[float]:
        """Return the factor of each microbatch's loss in the loss of the batch."""
        if isinstance(self._loss, MeanOver):
            counted = self._loss.count(batch.target)
            if not counted:
                raise ValueError(
                    "a batch has nothing that the loss counts: leave it out, its mean is undefined"
                )
            return [1 / counted] * len(batch.sizes)
        if not is_mean(self._loss):
            return [1.0] * len(batch.sizes)
        return [rows / batch.rows for rows in batch.sizes]
