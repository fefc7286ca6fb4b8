"""What a schedule keeps in memory: weight versions and microbatches in flight, over time."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipekit.plots import style
from pipekit.schedules import Schedule, check, slots

ROW_PX = 52
GAP_PX = 12
# Versions are made by updates and activations by forwards: they have their colours.
PANELS = {
    "versions": ("weight versions alive", style.OPS["UPDATE"].color),
    "in_flight": ("microbatches in flight", style.OPS["FORWARD"].color),
}


def in_flight_table(schedule: Schedule) -> pd.DataFrame:
    """Return what each worker keeps, over time: worker, slot, versions, in_flight.

    A row holds from its ``slot`` to that of the worker's next row: the first from slot 0, the
    others from the end of a task.

    Raises:
        ScheduleError: the schedule is not executable.
    """
    report = check(schedule)
    tables = [
        pd.DataFrame(
            {
                "worker": worker,
                "slot": np.append(0, times[:, 1]),
                "versions": np.append(1, versions),
                "in_flight": np.append(0, flying),
            }
        )
        for worker, (times, versions, flying) in enumerate(
            zip(slots(schedule), report.versions, report.in_flight, strict=True)
        )
    ]
    table = pd.concat(tables)
    # What a task that takes no time leaves behind holds from then on, not what it found.
    return table.drop_duplicates(["worker", "slot"], keep="last", ignore_index=True)


def in_flight(schedule: Schedule) -> go.Figure:
    """Draw the weight versions alive and the microbatches in flight on each worker, over slots.

    Raises:
        ScheduleError: the schedule is not executable.
    """
    table = in_flight_table(schedule)
    workers = len(schedule.workers)
    plot_px = workers * (ROW_PX + GAP_PX) - GAP_PX
    figure = make_subplots(
        rows=workers,
        cols=len(PANELS),
        shared_xaxes=True,
        horizontal_spacing=0.07,
        vertical_spacing=GAP_PX / plot_px if workers > 1 else 0,
    )
    peaks = {column: int(table[column].max()) for column in PANELS}
    figure.update_layout(
        style.layout(
            plot_px,
            f"{schedule.name}: at most {_count(peaks['versions'], 'weight version')} and "
            f"{_count(peaks['in_flight'], 'microbatch', 'es')} in flight (exact)",
        )
    )
    end = float(table["slot"].max())
    for worker in range(workers):
        rows = table[table["worker"] == worker]
        # A step needs its end too, for a worker that finishes before the others.
        slot = np.append(rows["slot"].to_numpy(), end)
        for col, (column, (name, color)) in enumerate(PANELS.items(), start=1):
            values = rows[column].to_numpy()
            figure.add_scatter(
                row=worker + 1,
                col=col,
                x=slot,
                y=np.append(values, values[-1]),
                name=name,
                legendgroup=name,
                showlegend=worker == 0,
                mode="lines",
                line={"shape": "hv", "color": color, "width": 2},
                fill="tozeroy",
                hovertemplate=f"worker {worker}, slot %{{x}}: %{{y}} {name}<extra></extra>",
            )
            figure.update_yaxes(
                style.axis(range=[0, 1.15 * peaks[column]], tickvals=[0, peaks[column]]),
                row=worker + 1,
                col=col,
            )
        figure.add_annotation(
            text=f"worker {worker}",
            showarrow=False,
            **{"x": 0, "xref": "paper", "xanchor": "right", "xshift": -28},
            **{"y": _middle(figure, worker + 1), "yref": "paper", "yanchor": "middle"},
        )
    figure.update_xaxes(style.axis(range=[0, end]))
    figure.update_xaxes(style.axis("time (slots)"), row=workers)
    return figure


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" + ("" if number == 1 else plural)


def _middle(figure: go.Figure, row: int) -> float:
    low, high = next(figure.select_yaxes(row=row, col=1)).domain
    return float(low + high) / 2
