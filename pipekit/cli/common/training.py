"""What ``pipekit train`` trains, and what it prints and writes of a training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

import pipekit as pk
from pipekit.cli.common.options import print_table
from pipekit.cli.common.own import OwnModel, own_batches, own_loss
from pipekit.host import provenance
from pipekit.host.provenance import workers_on_cores
from pipekit.workloads import WORKLOADS, Metric

DRAWN_BATCHES = 8  # more make bars too narrow to tell apart


@dataclass(frozen=True)
class Learning:
    """A network, its data, and the metric of its test."""

    layers: nn.Sequential
    loss: Callable[[Any, Any], Tensor]  # of an output and its target
    batches: Callable[[int], Sequence[Any]]  # of an epoch, from 0
    test: Sequence[Any] | None  # batches to test on, if there are any
    metric: Metric  # of the test
    source: str  # where the data is from


class Epoch(NamedTuple):
    """An epoch, from 1: its run, and the score on the test data after it, if there is any."""

    number: int
    run: pk.Run
    score: float | None


def known(name: str, text: Path | None, batch_rows: int, seed: int) -> Learning:
    """Return a network of :data:`WORKLOADS` with its data, or with a text file in place of it."""
    workload = WORKLOADS[name]
    data = workload.data() if text is None or workload.text is None else workload.text(text)
    return Learning(
        workload.build(),
        workload.loss,
        lambda epoch: data.batches(batch_rows, seed, epoch),
        data.test_batches(batch_rows),
        workload.metric,
        data.source,
    )


def own(
    model: str, data: str | None, test: str | None, loss: str | None, steps: int | None
) -> Learning:
    """Return a network of the user's; data is read again for every epoch, ``steps`` batches."""
    if data is None:
        raise ValueError(
            f"what does {model} learn? Name --data package.module:batches, a function that returns "
            f"pairs (input, target), whole batches"
        )
    judge = own_loss(loss)
    return Learning(
        OwnModel(model, data).build(),
        judge,
        lambda _: own_batches(data, steps),
        None if test is None else own_batches(test),
        Metric("loss", ".4f", judge),
        data,
    )


def print_epochs(epochs: Sequence[Epoch], learning: Learning) -> None:
    """Print a row for each epoch, of which there is one at least."""
    last = epochs[-1].run
    machine = last.provenance
    rows = [_row(epoch, learning) for epoch in epochs]
    print_table(
        [*rows[-1]],
        [[*row.values()] for row in rows],
        title=f"{last.schedule.name}, {last.schedule.stages} stages",
        caption=f"measured: {workers_on_cores(len(last.schedule.workers))} of {machine['cpu']}, "
        f"torch {machine['torch']}, seed {machine['seed']}; data: {learning.source}; "
        f"bubble of the makespan, of workers' spans, steady",
    )


def _row(epoch: Epoch, learning: Learning) -> dict[str, str]:
    number, run, score = epoch
    # Without events, as of a checkpoint of the epoch's end, there are none; few batches lack one.
    shares = [] if run.trace.frame.empty else run.trace.bubbles().loc["all"]
    tested = {} if score is None else {f"test {learning.metric.name}": learning.metric.shown(score)}
    skipped = {"skipped updates": str(len(run.skipped_updates))} if run.loss_scales else {}
    return {
        "epoch": str(number),
        "loss (nats)": f"{sum(run.losses) / len(run.losses):.4f}" if run.losses else "",
        **tested,
        "wall (s)": f"{run.wall_s:.2f}",
        "bubble": " ".join("-" if isnan(share) else f"{share:.0%}" for share in shares),
        "weight slots": " ".join(map(str, run.weight_slots)),
        **skipped,
    }


def write(run: pk.Run, data: str, folder: Path) -> list[Path]:
    """Write what a run did, and where its numbers and ``data`` are from; return the paths."""
    origin = run.provenance | {"data": data}
    drawn = run.first_batches(DRAWN_BATCHES)
    title = f"{drawn.name}, the first {DRAWN_BATCHES} batches"
    paths = pk.plots.save(pk.plots.timeline(drawn, title=title), folder / "timeline", drawn.frame)
    names = "trace.csv", "trace.perfetto.json", "provenance.json"
    events, perfetto, record = (folder / name for name in names)
    run.trace.to_csv(events)
    run.trace.to_perfetto(perfetto, provenance=origin)
    provenance.write(record, origin)
    return [*paths.values(), events, perfetto, record]
