"""The results of runs: of a training, and of forward passes alone."""

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, chain
from operator import add, attrgetter, mul
from typing import Any, TypeVar

import pandas as pd
import torch
from torch import Tensor

from pipekit.devices import CPU
from pipekit.engine.assignment import WorkerReport
from pipekit.engine.config import Loss
from pipekit.engine.observers.record import WorkerRecord, as_trace, table
from pipekit.host.provenance import provenance
from pipekit.losses.checks import is_mean
from pipekit.losses.losses import MeanOver
from pipekit.schedules import Schedule
from pipekit.traces import Trace
from pipekit.traces.memory import Memory
from pipekit.units import SECONDS, plural, written

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """The result of one ``train`` call.

    Attributes:
        losses: of each batch, the mean over its rows; a resumed run by the same table has those
            before the checkpoint, too.
        parts: each microbatch's addend of its batch's loss, batch after batch.
        sizes: the number of microbatches of each batch.
        outputs: of each batch those of its microbatches with rows, on the CPU, if ``Watch.outputs``
            is set; of a resumed run, those after the checkpoint.
        wall_s: seconds from the start of the workers to the end of the last one.
        name: of the schedule.
        table: the schedule, or a function that makes it; see :attr:`schedule`.
        loss_scales: of each update's losses, if they are scaled.
        skipped_updates: updates whose gradient was not finite, from 1: W(t) of a skipped update t
            is a copy of the weights before it.
        weight_slots: for each worker, the number of weight versions in memory, over its stages.
        peak_in_flight: for each worker, the most microbatches that waited for their backward.
        records: of each worker, merged by :attr:`trace`.
        sent_bytes: of each worker by receiver and purpose, merged by :attr:`traffic`.
        provenance: the label of the numbers, and where they were made.
        other_trace: replaces the recorded trace, e.g. in an emulation at its profile's pace.
    """

    losses: list[float]
    parts: "array[float]"
    sizes: "array[int]"
    outputs: list[list[Any]]
    wall_s: float
    name: str
    table: Schedule | Callable[[], Schedule]
    loss_scales: tuple[float, ...]
    skipped_updates: tuple[int, ...]
    weight_slots: tuple[int, ...]
    peak_in_flight: tuple[int, ...]
    records: Sequence[WorkerRecord]
    sent_bytes: Sequence[Mapping[tuple[int, str], int]]
    provenance: dict[str, Any]
    other_trace: Trace | None = None

    def __repr__(self) -> str:
        took = written(self.wall_s, SECONDS)
        losses = f", losses {self.losses[0]:.4g} to {self.losses[-1]:.4g}" if self.losses else ""
        batches = plural(len(self.losses), "batch", "es")
        return f"<Run of {self.name}: {batches} in {took}{losses}>"

    @property
    def microbatch_losses(self) -> list[list[float]]:
        """For each batch, each microbatch's addend of its loss."""
        stops = [*accumulate(self.sizes)]
        return [
            self.parts[start:stop].tolist() for start, stop in zip([0, *stops], stops, strict=False)
        ]

    # These are made when they are asked for: they may take longer than the run.

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that was run; of one that ended early, the tasks that it did."""
        return self.table if isinstance(self.table, Schedule) else self.table()

    @cached_property
    def trace(self) -> Trace:
        """The tasks of every worker with their times; empty without ``Watch.trace``."""
        if self.other_trace is not None:
            return self.other_trace
        return as_trace(self.records, self.name, self.provenance["label"])

    def first_batches(self, batches: int) -> Trace:
        """Return the trace up to the last event of so many batches, to be drawn.

        Raises:
            ValueError: it is of less than one batch.
        """
        if batches < 1:
            raise ValueError(f"batches must be at least 1, not {batches}")
        frame, moves = self.trace.frame, self.trace.transfers
        last = self.schedule.batches[:batches][-1][-1]
        end = frame.loc[frame["microbatch"] <= last, "end_s"].max()
        frame = frame[frame["start_s"] < end]
        return replace(
            self.trace,
            frame=frame.assign(end_s=frame["end_s"].clip(upper=end)),
            transfers=None if moves is None else moves[moves["end_s"] <= end],
        )

    @cached_property
    def traffic(self) -> pd.DataFrame:
        """Bytes from worker to worker: a row for each (source, destination, purpose).

        The purpose is "activation", "gradient" (of an activation) or "weights" (gradients of
        weights that stages share, or that the workers of a stage sum).
        """
        rows = [
            (worker, receiver, purpose, size)
            for worker, sent in enumerate(self.sent_bytes)
            for (receiver, purpose), size in sent.items()
        ]
        return table(rows, ["source", "destination", "purpose", "bytes"])


def result_of(
    name: str,
    schedule: Schedule | Callable[[], Schedule],
    batches: Iterable[range],
    reports: Sequence[WorkerReport],
    wall_s: float,
    seed: int | None,
    losses: Iterable[tuple[int, float]] = (),
    label: str = "measured",
    **origin: Any,
) -> Run:
    """Return the result of all workers' reports; ``losses`` are of microbatches before them."""
    known, first = _in_order([losses, *(report.losses for report in reports)])
    results = dict(chain(*(report.results for report in reports)))
    totals: list[float] = []
    outputs: list[list[Any]] = []
    sizes, stop = array("q"), first
    for batch in batches:
        if known:
            addends = known[batch.start - first : batch.stop - first]
            # From Python 3.12 on the built-in sum() rounds in another way.
            totals.append(reduce(add, addends, 0.0))
            sizes.append(len(batch))
            stop = batch.stop
        if results:
            outputs.append([results[k] for k in batch if k in results])
    return Run(
        losses=totals,
        parts=known[: stop - first],
        sizes=sizes,
        outputs=outputs,
        wall_s=wall_s,
        name=name,
        table=schedule,
        loss_scales=tuple(next(filter(None, map(attrgetter("loss_scales"), reports)), ())),
        skipped_updates=tuple(next(filter(None, map(attrgetter("skipped"), reports)), ())),
        weight_slots=tuple(report.weight_slots for report in reports),
        peak_in_flight=tuple(report.most_pending for report in reports),
        records=[*map(attrgetter("record"), reports)],
        sent_bytes=[*map(attrgetter("sent_bytes"), reports)],
        provenance=provenance(label, seed=seed, **origin),
    )


def measure_memory(run: Any) -> Memory:
    """Return the measured bytes of live tensors in every worker's memory over time.

    ``run`` is a :class:`Run`, or a :class:`pipekit.PipelinedModule` after a minibatch.
    A tensor counts from the moment when the engine or autograd takes hold of it until its storage
    is freed.  On GPUs times are those at which the host issued the work, and the result also has
    the peaks of PyTorch's allocator.  :func:`pipekit.simulate` predicts the same.

    Raises:
        ValueError: memory was not followed.
    """
    memory: Memory | None = run.trace.memory
    if memory is None:
        raise ValueError(
            "memory was not followed: pass watch=Watch(memory=True) to train() or PipelinedModule "
            "(an emulated run has no memory: simulate it)"
        )
    return memory


def _in_order(logs: Sequence[Iterable[tuple[int, float]]]) -> "tuple[array[float], int]":
    """Return losses by microbatch (0 for unknown ones), and the number of the first."""
    first, last = sys.maxsize, -1
    for microbatch, _ in chain(*logs):
        first, last = min(first, microbatch), max(last, microbatch)
    if last < 0:
        return array("d"), 0
    known = array("d", bytes(8 * (last + 1 - first)))
    for microbatch, loss in chain(*logs):
        known[microbatch - first] = loss
    return known, first


Metric = Callable[[Any, Any], Any]
"""``metric(output, target)`` of some rows, one number."""


@dataclass(frozen=True)
class Metrics:
    """Metrics of the same rows, by name, which take the place of a loss."""

    metrics: Mapping[str, Metric | Loss]

    def __call__(self, output: Any, target: Any) -> list[tuple[Tensor, Tensor]]:
        """Return each metric's number, and its count if it is a mean over counted entries."""
        found = []
        for metric in self.metrics.values():
            value = torch.as_tensor(metric(output, target))
            counted = metric.count(target) if isinstance(metric, MeanOver) else 1.0
            found.append((value, torch.tensor(counted, device=CPU)))
        return found

    def means(self, reports: Sequence[WorkerReport]) -> dict[str, float]:
        """Return each metric's mean over all rows, or over its counted entries."""
        rows = max((report.rows for report in reports), key=len)  # not all workers see all data
        values = results(reports)
        means = {}
        for place, (name, metric) in enumerate(self.metrics.items()):
            numbers = [value[place][0].item() for value in values]
            counts = [value[place][1].item() for value in values]
            if isinstance(metric, MeanOver):
                if not sum(counts):
                    raise ValueError(
                        "the batches have nothing that a metric counts, and its mean is undefined: "
                        "evaluate on batches with targets that count"
                    )
                means[name] = sum(numbers) / sum(counts)
                continue
            weights = rows if is_mean(metric) else [1] * len(rows)
            means[name] = sum(map(mul, numbers, weights)) / sum(rows)
        return means


def results(reports: Sequence[WorkerReport]) -> list[Any]:
    """Return the workers' results of each batch's output, in the order of the batches."""
    by_microbatch = {k: value for report in reports for k, value in report.results}
    return [by_microbatch[k] for k in sorted(by_microbatch)]
