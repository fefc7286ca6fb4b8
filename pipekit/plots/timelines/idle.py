"""Idle time as horizontal bars, hatched by what a worker waits for; hovering says who and why."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.plots.timelines.event_styles import GAP_STYLES
from pipekit.schedules import Op, ScheduleError
from pipekit.traces import CAUSES, GAPS, RECOMPUTE, Cause, Trace

HEIGHT = 0.8
"""Of a row's height."""
LEAST_PX = 0.5
"""Shorter gaps cannot be seen: a measured run has thousands of them."""


def idle(trace: Trace, scale: float, unit: str) -> list[go.Bar]:
    """Return the rows' background, and the gaps in which a worker waits for others, a bar each.

    Args:
        trace: at least one event; a slice of a run has the background only, since its events do
            not say why its workers wait.
        scale: what turns the trace's times into ``unit``.
        unit: of the drawn times, for the hover text.
    """
    everywhere = pd.DataFrame(
        {
            "worker": range(trace.workers),
            "start_s": trace.frame["start_s"].min(),
            "end_s": trace.frame["end_s"].max(),
        }
    )
    background = _bars(everywhere, style.IDLE_STYLE, scale) | {"hoverinfo": "skip"}
    gaps = visible_gaps(trace)
    found = [background]
    for look in dict.fromkeys(GAP_STYLES.values()):
        alike = gaps[[each == look for each in gaps["look"]]]
        if len(alike):
            found.append(_waiting(alike, look, scale, unit))
    return [go.Bar(each) for each in found]


def visible_gaps(trace: Trace) -> pd.DataFrame:
    """Return the gaps of :meth:`pipekit.traces.Trace.gaps` that can be seen, ready to be drawn.

    Returns:
        Its columns; look, a style; told, lines that say why the worker is idle.  No row for a slice
        of a run: its events do not say why its workers wait.
    """
    try:
        gaps = trace.gaps()
    except ScheduleError:
        return pd.DataFrame(columns=[*GAPS, "look", "told"])
    least = LEAST_PX / style.PANEL_PX * trace.makespan_s
    gaps = gaps[gaps["end_s"] - gaps["start_s"] >= least]
    looks = [GAP_STYLES[Cause(cause)] for cause in gaps["cause"]]
    return gaps.assign(look=looks, told=_told(gaps, trace))


def _waiting(gaps: pd.DataFrame, look: style.Style, scale: float, unit: str) -> dict[str, Any]:
    hover: dict[str, Any] = {
        "customdata": pd.DataFrame(
            {
                "worker": gaps["worker"],
                "from": gaps["start_s"] * scale,
                "to": gaps["end_s"] * scale,
                "told": gaps["told"].str.replace("\n", "<br>"),
            }
        ).to_numpy(dtype=object),
        "hovertemplate": "<b>idle</b>, worker %{customdata[0]}<br>%{customdata[3]}<br>"
        f"%{{customdata[1]:.6~g}} to %{{customdata[2]:.6~g}} {unit}<extra></extra>",
    }
    if look == style.IDLE_STYLE:  # the background shows it, and stands in the legend
        look = look._replace(name="idle: why", color=style.TRANSPARENT)
        hover["showlegend"] = False
    return _bars(gaps, look, scale) | hover


def _told(gaps: pd.DataFrame, trace: Trace) -> list[str]:
    """Return lines for each gap: its cause, what it waits for, and why that is late."""
    meanings = {cause.value: meaning for cause, meaning in CAUSES.items()}
    columns = ["op", "microbatch", "stage", "worker"]
    events = list(trace.frame[columns].itertuples(index=False, name=None))
    waited = trace.waited_for()
    told = []
    for gap in gaps.itertuples():
        text = f"{gap.cause}: {meanings[gap.cause]}"
        if gap.before:
            text += f"\nbefore {gap.before}"
        if gap.waits_for:
            text += f", which needs {gap.waits_for} on worker {gap.waits_for_worker}"
            source = waited[gap.waits_for_row]
            if source >= 0:
                op, microbatch, stage, worker = events[source]
                letter = "R" if op == RECOMPUTE else Op[op].value
                text += (
                    f"\nthat waited for {letter}{microbatch} of stage {stage} on worker {worker}"
                )
        told.append(text)
    return told


def _bars(rows: pd.DataFrame, look: style.Style, scale: float) -> dict[str, Any]:
    return {
        "name": look.name,
        "orientation": "h",
        "y": rows["worker"].to_numpy(),
        "base": rows["start_s"].to_numpy() * scale,
        "x": (rows["end_s"] - rows["start_s"]).to_numpy() * scale,
        "width": HEIGHT,
        "marker": {
            "color": look.color,
            "line": {"width": 0},
            "pattern": style.pattern(look),
        },
        "legendgroup": look.name,
        "legendrank": 2000,
    }
