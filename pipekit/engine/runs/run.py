"""What a training run returns."""

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Protocol, Self, TypeVar

import pandas as pd

from pipekit.engine.observers.record import WorkerRecord, as_trace, table
from pipekit.engine.work import WorkerReport
from pipekit.host.provenance import provenance
from pipekit.schedules import Schedule
from pipekit.traces import Trace
from pipekit.traces.memory import Memory

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """The outcome of one ``train`` call.

    Attributes:
        losses: of each batch, the loss averaged over its rows; of a run that was taken up again
            from a checkpoint, also of the batches before it.
        parts: what each microbatch adds to its batch's loss, one batch behind the other.
        sizes: the microbatches of each batch.
        outputs: of each batch those of its microbatches, on the CPU, if they were to be kept.
        wall_s: seconds from the start of the workers to the end of the last one.
        name: the schedule's.
        table: what was run, or what makes it; see :attr:`schedule`.
        loss_scales: of each update's losses, if they are scaled.
        skipped_updates: those whose gradient was not finite, from 1: update t makes W(t), which is
            then a copy of the weights before it.
        weight_slots: for each worker, how many weight versions it held in memory, over its stages.
        peak_in_flight: for each worker, the most microbatches that waited for their backward.
        records: what each worker has recorded, which :attr:`trace` shows as one.
        sent_bytes: of each worker by receiver and purpose, which :attr:`traffic` shows as one.
        provenance: what the numbers are and where they were made.
        other_trace: in place of what was recorded, say that of an emulation at its profile's pace.
    """

    losses: list[float]
    parts: "array[float]" = field(repr=False)
    sizes: "array[int]" = field(repr=False)
    outputs: list[list[Any]] = field(repr=False)
    wall_s: float
    name: str
    table: Schedule | Callable[[], Schedule] = field(repr=False)
    loss_scales: tuple[float, ...]
    skipped_updates: tuple[int, ...]
    weight_slots: tuple[int, ...]
    peak_in_flight: tuple[int, ...]
    records: Sequence[WorkerRecord] = field(repr=False)
    sent_bytes: Sequence[Mapping[tuple[int, str], int]] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)
    other_trace: Trace | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        schedule: Schedule | Callable[[], Schedule],
        batches: Iterable[range],
        reports: Sequence[WorkerReport],
        wall_s: float,
        seed: int | None,
        losses: Iterable[tuple[int, float]] = (),
        label: str = "measured",
        **origin: Any,
    ) -> Self:
        """Return what all workers' reports amount to.

        Args:
            name: the schedule's.
            schedule: what they ran, or what makes it.
            batches: the microbatches of each batch.
            reports: of each worker.
            wall_s: seconds that it took.
            seed: of the layers' random numbers.
            losses: of microbatches that the reports do not have.
            label: what the numbers are.
            origin: more of their provenance.
        """
        known, first = _in_order([losses, *(report.losses for report in reports)])
        results = dict(chain(*(report.results for report in reports)))
        totals: list[float] = []
        outputs: list[list[Any]] = []
        sizes, stop = array("q"), first
        for batch in batches:
            if known:
                totals.append(_total(known[batch.start - first : batch.stop - first]))
                sizes.append(len(batch))
                stop = batch.stop
            if results:
                outputs.append([results[k] for k in batch])
        return cls(
            losses=totals,
            parts=known[: stop - first],
            sizes=sizes,
            outputs=outputs,
            wall_s=wall_s,
            name=name,
            table=schedule,
            loss_scales=_known_to_all(report.loss_scales for report in reports),
            skipped_updates=_known_to_all(report.skipped for report in reports),
            weight_slots=tuple(report.weight_slots for report in reports),
            peak_in_flight=tuple(report.most_pending for report in reports),
            records=[report.record for report in reports],
            sent_bytes=[report.sent_bytes for report in reports],
            provenance=provenance(label, seed=seed, **origin),
        )

    @property
    def microbatch_losses(self) -> list[list[float]]:
        """Of each batch, what each microbatch adds to its loss."""
        stops = [*accumulate(self.sizes)]
        return [
            self.parts[start:stop].tolist() for start, stop in zip([0, *stops], stops, strict=False)
        ]

    # These are made when they are asked for: they may take longer than the run.

    @cached_property
    def schedule(self) -> Schedule:
        """What was run.

        Of a run that ended early, the tasks that it did; of a stream, or with ``restart=False``,
        its part of the table.
        """
        return self.table if isinstance(self.table, Schedule) else self.table()

    @cached_property
    def trace(self) -> Trace:
        """What every worker did and when; empty if tracing was off."""
        if self.other_trace is not None:
            return self.other_trace
        return as_trace(self.records, self.name, self.provenance["label"])

    @cached_property
    def traffic(self) -> pd.DataFrame:
        """Bytes that crossed from worker to worker: a row for each (source, destination, purpose).

        The purpose is "activation", "gradient" (of an activation) or "weights" (gradients of
        weights that stages share, or summed by the workers of a stage).
        """
        rows = [
            (worker, receiver, purpose, size)
            for worker, sent in enumerate(self.sent_bytes)
            for (receiver, purpose), size in sent.items()
        ]
        return table(rows, ["source", "destination", "purpose", "bytes"])


class Traced(Protocol):
    """A :class:`Run`, or a :class:`pipekit.PipelinedModule` after a minibatch."""

    @property
    def trace(self) -> Trace:
        """What every worker did."""


def measure_memory(run: Traced) -> Memory:
    """Return what lay in every worker's memory over time: bytes of live tensors, measured.

    A tensor counts from when the engine or autograd takes hold of it until its storage is freed.
    On GPUs times are those at which the host issued the work, and the result also has the peaks of
    PyTorch's allocator.
    :func:`pipekit.simulate` predicts the same, as ``Trace.memory``.

    Raises:
        ValueError: memory was not followed.
    """
    if run.trace.memory is None:
        raise ValueError(
            "memory was not followed: pass watch=Watch(memory=True) to train() or PipelinedModule "
            "(an emulated run has no memory: simulate it)"
        )
    return run.trace.memory


def _in_order(logs: Sequence[Iterable[tuple[int, float]]]) -> "tuple[array[float], int]":
    """Return losses by microbatch, and the first one's number; 0 for those that nobody knows."""
    first, last = sys.maxsize, -1
    for microbatch, _ in chain(*logs):
        first, last = min(first, microbatch), max(last, microbatch)
    if last < 0:
        return array("d"), 0
    known = array("d", bytes(8 * (last + 1 - first)))
    for microbatch, loss in chain(*logs):
        known[microbatch - first] = loss
    return known, first


def _total(losses: Iterable[float]) -> float:
    """Return a batch's loss, added up in the order of its microbatches."""
    total = 0.0  # the built-in sum() rounds in another way from Python 3.12 on
    for loss in losses:
        total += loss
    return total


def _known_to_all(each: Iterable[list[T]]) -> tuple[T, ...]:
    """Return what every worker reports that has done anything."""
    return tuple(next(filter(None, each), ()))
