"""Events as horizontal bars."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.timelines.event_styles import event_styles
from pipekit.plots.timelines.idle import HEIGHT, idle
from pipekit.traces import Trace

ROOMY_PX = 4
"""A bar this wide, on average, bears full edges."""


def bars(trace: Trace, scale: float, unit: str, versions: bool) -> list[go.Bar]:
    """Return a trace's events as plotly bars: first idle time (:func:`idle`), then a trace a style.

    Args:
        trace: at least one event.
        scale: what turns the trace's times into ``unit``.
        unit: of the drawn times, for the hover text.
        versions: also write the weight version under the microbatch.
    """
    frame = trace.frame
    # Where bars are only pixels wide, edges must not bury the colours between them.
    room_px = style.PANEL_PX * trace.workers / len(frame)
    edges = min(1, room_px / ROOMY_PX)
    found, kinds = event_styles(trace)
    alike = [
        _bars_alike(frame[kinds == kind], look, edges, scale, unit, versions)
        for kind, look in enumerate(found)
    ]
    return [*idle(trace, scale, unit), *alike]


def _bars_alike(
    frame: pd.DataFrame, look: style.Style, edges: float, scale: float, unit: str, versions: bool
) -> go.Bar:
    start, end = (frame[column].to_numpy() * scale for column in ("start_s", "end_s"))
    update = look == style.OPS["UPDATE"]
    text = None
    if not update:
        text = frame["microbatch"].astype(str)
        text = (text + "<br>v" + frame["version"].astype(str) if versions else text).tolist()
    return go.Bar(
        name=look.name,
        orientation="h",
        y=frame["worker"].to_numpy(),
        base=start,
        x=end - start,
        width=HEIGHT,
        marker={
            "color": look.color,
            "line": {"color": look.edge, "width": edges * look.edge_px},
            "pattern": style.pattern(look),
        },
        text=text,
        textposition="inside",
        insidetextanchor="middle",
        insidetextfont={"color": "black", "family": style.NARROW_FONTS},
        textangle=0,
        customdata=np.column_stack(
            [frame[["worker", "stage", "microbatch", "version"]].to_numpy(), start, end]
        ),
        hovertemplate=(
            f"<b>{look.name}</b>, worker %{{customdata[0]}}, stage %{{customdata[1]}}<br>"
            + ("sums up to microbatch" if update else "microbatch")
            + " %{customdata[2]}<br>"
            + ("makes" if update else "reads")
            + " version %{customdata[3]}<br>%{customdata[4]:.6~g} to %{customdata[5]:.6~g} "
            + f"{unit}<extra></extra>"
        ),
        legendgroup=look.name,
    )
