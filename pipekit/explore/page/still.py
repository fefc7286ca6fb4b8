"""What an explorer shows, as figures that need no kernel."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import display

from pipekit import plots
from pipekit.explore.page.view import Timeline, View


def styled(view: View) -> Any:
    """Return the table, ready to be shown."""
    assert view.table is not None
    numbers = view.table.select_dtypes("number").columns
    shown = view.table.style.hide(axis="index").format("{:,.4g}", subset=numbers)
    return shown.set_caption(view.caption)


def static(view: View, results_dir: str | Path) -> None:
    """Display what an explorer shows as figures that need no kernel, and save them.

    Args:
        view: what to show.
        results_dir: the folder for an SVG and a CSV of each figure.
    """
    folder = Path(results_dir).resolve()
    if view.text:
        print(view.text)
    if view.timelines:
        traces = [timeline.trace for timeline in view.timelines]
        figure = plots.compare(*traces, titles=[each.name for each in view.timelines])
        _show(figure, folder / "timelines", _events(view.timelines))
    held = [timeline for timeline in view.timelines if timeline.memory]
    if held:
        _show(_memory(*held), folder / "memory", _bytes(held))
    for name, plot in view.plots.items():
        _show(plot.figure, folder / name, plot.data)
    if view.table is not None:
        view.table.to_csv(folder / "table.csv", index=False)
        display(styled(view))


def _events(timelines: Sequence[Timeline]) -> pd.DataFrame:
    return pd.concat([each.trace.frame.assign(shown=each.name) for each in timelines])


def _bytes(timelines: Sequence[Timeline]) -> pd.DataFrame:
    return pd.concat([each.held.frame.assign(shown=each.name) for each in timelines])


def _memory(first: Timeline, other: Timeline | None = None) -> Any:
    """Draw the bytes over time of one run, with the total of the other."""
    if other is None:
        return plots.memory(first.held, title=first.name, capacity=first.capacity)
    return plots.memory(
        first.held,
        title=first.name,
        capacity=first.capacity,
        other=other.held,
        other_name=other.name,
    )


def _show(figure: Any, stem: Path, data: pd.DataFrame) -> None:
    """Save a figure and display it: live in Jupyter, as SVG where no script runs (GitHub)."""
    svg = plots.save(figure, stem, data)["svg"].read_text(encoding="utf-8")
    live = json.loads(figure.to_json())
    display({"application/vnd.plotly.v1+json": live, "image/svg+xml": svg}, raw=True)
