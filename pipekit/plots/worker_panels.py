"""A panel for each worker above one time axis; in it, the weights and microbatches it keeps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.schedules import Schedule, check, slots
from pipekit.units import plural

GAP_PX, ROW_PX = 12, 52
"""Between two panels; of a panel of counts."""
NAME_PX, TICKS_PX, COUNTS_PX = 68, 40, 28
"""Of the left margin, for "worker 15", and for the numbers along an axis of bytes, or of counts."""
COUNTED = {
    "weight_slots": ("weight slots taken", {"color": style.PARTS["weights"].color}),
    "in_flight": (
        "microbatches in flight",
        {"color": style.PARTS["activations"].edge, "dash": "dash"},
    ),
}


def in_flight_table(schedule: Schedule) -> pd.DataFrame:
    """Return what each worker keeps, over time: worker, slot, weight_slots, in_flight.

    A row holds from its ``slot`` to that of the worker's next row: the first from slot 0, the
    others from the end of a task. A worker with several stages has a weight slot for each version
    of each of them.

    Raises:
        ScheduleError: the schedule is not executable.
    """
    schedule = schedule.excerpt()
    report = check(schedule)
    tables = [
        pd.DataFrame(
            {
                "worker": worker,
                "slot": np.append(0, times[:, 1]),
                "weight_slots": np.append(len({task.stage for task in tasks}), taken),
                "in_flight": np.append(0, flying),
            }
        )
        for worker, (tasks, times, taken, flying) in enumerate(
            zip(schedule.workers, slots(schedule), report.versions, report.in_flight, strict=True)
        )
    ]
    table = pd.concat(tables)
    # What a task that takes no time leaves behind holds from then on, not what it found.
    return table.drop_duplicates(["worker", "slot"], keep="last", ignore_index=True)


def in_flight(schedule: Schedule) -> go.Figure:
    """Draw the weight slots taken and the microbatches in flight on each worker, over slots.

    Raises:
        ScheduleError: the schedule is not executable.
    """
    table = in_flight_table(schedule)
    workers = range(schedule.worker_count)
    versions, flying = (int(table[column].max()) for column in COUNTED)
    most, end = max(versions, flying), float(table["slot"].max())
    layout = worker_panels(
        workers,
        ROW_PX,
        style.axis("time (slots)", range=[0, end]),
        style.axis(range=[0, 1.15 * most], tickvals=[0, most]),
        f"{schedule.name}: at most {plural(versions, 'weight slot')} and "
        f"{plural(flying, 'microbatch', 'es')} in flight (exact)",
        COUNTS_PX,
    )
    traces = []
    for worker in workers:
        rows = table[table["worker"] == worker]
        for held, (name, look) in COUNTED.items():
            line = {
                **steps(rows["slot"], rows[held], end),
                "name": name,
                "mode": "lines",
                "line": {**look, "shape": "hv", "width": 2},
                "hovertemplate": f"worker {worker}, slot %{{x}}: %{{y}} {name}<extra></extra>",
            }
            traces.append(in_panel(line, worker))
    return go.Figure(traces, layout)


def worker_panels(
    workers: Sequence[int],
    row_px: float,
    x_axis: dict[str, Any],
    y_axis: dict[str, Any],
    title: str,
    ticks_px: int,
) -> dict[str, Any]:
    """Return the plotly layout of empty panels, one a worker, above one time axis.

    ``ticks_px`` is how wide the numbers along the vertical axes are.
    """
    # All at once, as plain dicts: plotly checks every later change anew, which takes longer than
    # all the rest.
    plot_px = len(workers) * (row_px + GAP_PX) - GAP_PX
    layout = style.layout(plot_px, title)
    layout["margin"] = {**layout["margin"], "l": NAME_PX + ticks_px}
    layout["annotations"] = []
    for row, worker in enumerate(workers):
        top = 1 - row * (row_px + GAP_PX) / plot_px
        domain = [max(0.0, top - row_px / plot_px), top]
        x, y = panel(row).values()
        below = {} if row == len(workers) - 1 else {"title": None, "showticklabels": False}
        above = {"matches": "x"} if row else {}
        layout[f"xaxis{x[1:]}"] = {**x_axis, "anchor": y, **below, **above}
        layout[f"yaxis{y[1:]}"] = {**y_axis, "domain": domain, "anchor": x}
        beside = write_beside(domain, f"worker {worker}", x=0, xanchor="right", xshift=-ticks_px)
        layout["annotations"].append(beside)
    return layout


def panel(row: int) -> dict[str, str]:
    """Return the axes of the panel in a row, as a plotly trace names them."""
    suffix = str(row + 1) if row else ""
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def write_beside(domain: Sequence[float], text: str, **x: Any) -> dict[str, Any]:
    """Return a plotly text at half the height of a panel, at ``x`` of its width."""
    place = {"xref": "paper", "y": sum(domain) / 2, "yref": "paper", "yanchor": "middle"}
    return {"text": text, "showarrow": False, **x, **place}


def steps(times: pd.Series, values: pd.Series, end: float) -> dict[str, np.ndarray]:
    """Return the x and y of what holds from each time to the next, and the last to the end."""
    return {"x": np.append(times, end), "y": np.append(values, values.iloc[-1])}


def in_panel(trace: dict[str, Any], row: int) -> dict[str, Any]:
    """Return a line or area in its panel, in the legend once for all of a name."""
    name = trace.get("name")
    shown = {"legendgroup": name, "showlegend": bool(name) and row == 0}
    return {"type": "scatter", **trace, **panel(row), **shown}
