"""What an explorer shows for one setting, live or as figures that need no kernel."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from IPython.display import display

from pipekit import plots
from pipekit.traces import Memory, Trace


@dataclass(frozen=True)
class Timeline:
    """A trace to draw, with a note beside each worker's row, if any."""

    trace: Trace
    notes: Sequence[str] = ()
    title: str | None = None
    memory: bool = False  # whether each worker's bytes are drawn below its row
    capacity: float | None = None  # of a worker, in bytes

    @property
    def name(self) -> str:
        return self.title or self.trace.name

    @property
    def held(self) -> Memory:
        """The bytes over time; there are some if ``memory`` is true."""
        assert self.trace.memory is not None
        return self.trace.memory

    @property
    def most_bytes(self) -> float:
        """The most that is drawn below a row, with the capacity; 0 if no memory is drawn."""
        return max(*self.held.peak_bytes, self.capacity or 0.0, 1.0) if self.memory else 0.0


@dataclass(frozen=True)
class Plot:
    """A plotly figure and the numbers in it."""

    figure: go.Figure
    data: pd.DataFrame


@dataclass(frozen=True)
class View:
    """Everything to show for one setting, from the top.

    Timelines in the same unit share one time axis; the name of a plot is also its file's.
    """

    text: str = ""
    timelines: Sequence[Timeline] = ()
    plots: Mapping[str, Plot] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    caption: str = ""


def styled(view: View) -> Any:
    """Return the table, ready to be shown."""
    assert view.table is not None
    shown = view.table.style.hide(axis="index").set_caption(view.caption)
    return shown.format(precision=3, thousands=",")


def figures(view: View) -> Iterator[tuple[str, Plot]]:
    """Yield each figure of a view that needs no kernel, by the name of its files."""
    if view.timelines:
        traces = [timeline.trace for timeline in view.timelines]
        figure = plots.compare(*traces, titles=[each.name for each in view.timelines])
        events = [each.trace.frame.assign(shown=each.name) for each in view.timelines]
        yield "timelines", Plot(figure, pd.concat(events))
    if held := [timeline for timeline in view.timelines if timeline.memory]:
        first, other = held[0], held[1] if len(held) > 1 else None
        figure = plots.memory(
            first.held,
            title=first.name,
            capacity=first.capacity,
            other=other.held if other else None,
            other_name=other.name if other else None,
        )
        numbers = [timeline.held.frame.assign(shown=timeline.name) for timeline in held]
        yield "memory", Plot(figure, pd.concat(numbers))
    yield from view.plots.items()


def static(view: View, results_dir: str | Path) -> None:
    """Display a view as figures that need no kernel; save an SVG and a CSV of each."""
    folder = Path(results_dir).resolve()
    if view.text:
        print(view.text)
    for name, plot in figures(view):
        svg = plots.save(plot.figure, folder / name, plot.data)["svg"].read_text(encoding="utf-8")
        live = json.loads(plot.figure.to_json())
        display({"application/vnd.plotly.v1+json": live, "image/svg+xml": svg}, raw=True)
    if view.table is not None:
        view.table.to_csv(folder / "table.csv", index=False)
        display(styled(view))


def still(view: View) -> None:
    """Display a view's first figure in a saved notebook; ``explore.css`` hides it in a live one."""
    for _, plot in islice(figures(view), 1):
        display({"image/svg+xml": plots.svg(plot.figure)}, raw=True)
