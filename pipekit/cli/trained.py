"""What a training is told by: a table of its epochs, and files about the last of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from pipekit import plots, provenance
from pipekit.engine import Run
from pipekit.metrics import Metric
from pipekit.traces import Trace

DRAWN_BATCHES = 8
"""More make bars too narrow to tell apart."""


def table(
    runs: Sequence[Run],
    scores: Sequence[float],
    metric: Metric,
    origin: dict[str, Any],
    first: int,
) -> Table:
    """Return a row for each epoch.

    Args:
        runs: an epoch each.
        scores: on the test data, after each.
        metric: of the scores.
        origin: of the numbers, with what they were made on as "data".
        first: the number of the first epoch.
    """
    last = runs[-1]
    made = Table(
        title=f"{last.schedule.name}, {last.schedule.stages} stages",
        caption=f"measured on {origin['cores']} cores of {origin['cpu']}, "
        f"torch {origin['torch']}, seed {origin['seed']}; data: {origin['data']}",
    )
    for heading in (
        "epoch",
        "loss (nats)",
        f"test {metric.name}",
        "wall (s)",
        "bubble",
        "weight versions",
        *(["skipped updates"] if last.loss_scales else []),
    ):
        made.add_column(heading, justify="right")
    for epoch, (run, score) in enumerate(zip(runs, scores, strict=True), start=first):
        trained = not run.trace.frame.empty  # else the checkpoint was of the epoch's end
        made.add_row(
            str(epoch),
            f"{sum(run.losses) / len(run.losses):.4f}" if run.losses else "",
            metric.shown(score),
            f"{run.wall_s:.2f}",
            f"{run.trace.bubble:.0%}" if trained else "",
            " ".join(map(str, run.weight_buffers)),
            *([str(len(run.skipped_updates))] if run.loss_scales else []),
        )
    return made


def write(run: Run, origin: dict[str, Any], folder: Path) -> list[Path]:
    """Write what a run did, and where its numbers are from; return the paths."""
    drawn = _first_batches(run)
    title = f"{drawn.name}, the first {DRAWN_BATCHES} batches"
    figure = plots.timeline(drawn, title=title)
    paths = plots.save(figure, folder / "timeline", drawn.frame)
    events, perfetto = folder / "trace.csv", folder / "trace.perfetto.json"
    run.trace.to_csv(events)
    run.trace.to_perfetto(perfetto, provenance=origin)
    record = folder / "provenance.json"
    provenance.write(record, origin)
    return [*paths.values(), events, perfetto, record]


def _first_batches(run: Run) -> Trace:
    """Return the trace up to the end of the first batches' last event."""
    frame = run.trace.frame
    last = run.schedule.batches[:DRAWN_BATCHES][-1][-1]
    end = frame.loc[frame["microbatch"] <= last, "end_s"].max()
    frame = frame[frame["start_s"] < end]
    return replace(run.trace, frame=frame.assign(end_s=frame["end_s"].clip(upper=end)))
