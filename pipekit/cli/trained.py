"""What a training is told by: a table of its epochs, and files about the last of them."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from pipekit import plots
from pipekit.engine import Run
from pipekit.host import provenance
from pipekit.host.cores import workers_on_cores
from pipekit.metrics import Metric
from pipekit.traces import Trace

DRAWN_BATCHES = 8
"""More make bars too narrow to tell apart."""


class Epoch(NamedTuple):
    """An epoch, from 1: its run, and the score on the test data after it, if there is any."""

    number: int
    run: Run
    score: float | None


def table(epochs: Sequence[Epoch], metric: Metric, data: str) -> Table:
    """Return a row for each epoch.

    Args:
        epochs: one at least.
        metric: of the scores.
        data: the source of what was learnt.
    """
    last = epochs[-1].run
    machine = last.provenance
    made = Table(
        title=f"{last.schedule.name}, {last.schedule.stages} stages",
        caption=f"measured: {workers_on_cores(len(last.schedule.workers))} of {machine['cpu']}, "
        f"torch {machine['torch']}, seed {machine['seed']}; data: {data}",
    )
    for heading in (
        "epoch",
        "loss (nats)",
        *([f"test {metric.name}"] if epochs[-1].score is not None else []),
        "wall (s)",
        "bubble (makespan, spans, steady)",
        "weight slots",
        *(["skipped updates"] if last.loss_scales else []),
    ):
        made.add_column(heading, justify="right")
    for number, run, score in epochs:
        trained = not run.trace.frame.empty  # else the checkpoint was of the epoch's end
        made.add_row(
            str(number),
            f"{sum(run.losses) / len(run.losses):.4f}" if run.losses else "",
            *([metric.shown(score)] if score is not None else []),
            f"{run.wall_s:.2f}",
            _bubbles(run.trace) if trained else "",
            " ".join(map(str, run.weight_slots)),
            *([str(len(run.skipped_updates))] if run.loss_scales else []),
        )
    return made


def _bubbles(trace: Trace) -> str:
    """Return the three bubbles of all workers; a run of few batches has no steady one."""
    shares = trace.bubbles().loc["all"]
    return ", ".join("-" if isnan(share) else f"{share:.0%}" for share in shares)


def write(run: Run, data: str, folder: Path) -> list[Path]:
    """Write what a run did, and where its numbers and ``data`` are from; return the paths."""
    origin = run.provenance | {"data": data}
    drawn = first_batches(run, DRAWN_BATCHES)
    title = f"{drawn.name}, the first {DRAWN_BATCHES} batches"
    figure = plots.timeline(drawn, title=title)
    paths = plots.save(figure, folder / "timeline", drawn.frame)
    events, perfetto = folder / "trace.csv", folder / "trace.perfetto.json"
    run.trace.to_csv(events)
    run.trace.to_perfetto(perfetto, provenance=origin)
    record = folder / "provenance.json"
    provenance.write(record, origin)
    return [*paths.values(), events, perfetto, record]


def first_batches(run: Run, batches: int) -> Trace:
    """Return the trace up to the end of so many batches' last event."""
    frame = run.trace.frame
    last = run.schedule.batches[:batches][-1][-1]
    end = frame.loc[frame["microbatch"] <= last, "end_s"].max()
    frame = frame[frame["start_s"] < end]
    return replace(run.trace, frame=frame.assign(end_s=frame["end_s"].clip(upper=end)))
