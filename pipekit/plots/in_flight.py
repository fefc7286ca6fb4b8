"""What a schedule keeps in memory: weight slots and microbatches in flight, over time."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.worker_panels import panel, steps, worker_panels
from pipekit.schedules import Schedule, check, slots
from pipekit.units import plural

ROW_PX = 52
PANELS = {
    "weight_slots": ("weight slots taken", style.PARTS["weights"].color),
    "in_flight": ("microbatches in flight", style.PARTS["activations"].color),
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
    peaks = {column: int(table[column].max()) for column in PANELS}
    end = float(table["slot"].max())
    layout = worker_panels(
        workers,
        ROW_PX,
        style.axis("time (slots)", range=[0, end]),
        [style.axis(range=[0, 1.15 * peak], tickvals=[0, peak]) for peak in peaks.values()],
        title=f"{schedule.name}: at most {plural(peaks['weight_slots'], 'weight slot')} and "
        f"{plural(peaks['in_flight'], 'microbatch', 'es')} in flight (exact)",
    )
    traces = []
    for worker in workers:
        rows = table[table["worker"] == worker]
        for column, (held, (name, color)) in enumerate(PANELS.items()):
            traces.append(
                {
                    "type": "scatter",
                    **panel(worker, column, len(PANELS)),
                    **steps(rows["slot"], rows[held], end),
                    "name": name,
                    "legendgroup": name,
                    "showlegend": worker == 0,
                    "mode": "lines",
                    "line": {"shape": "hv", "color": color, "width": 2},
                    "fill": "tozeroy",
                    "hovertemplate": f"worker {worker}, slot %{{x}}: %{{y}} {name}<extra></extra>",
                }
            )
    return go.Figure(traces, layout)
