"""How a trace is drawn: its title, the styles of its events and gaps, and both as bars."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

import pipekit.units as units
from pipekit.plots import style
from pipekit.schedules import OPS, Op, Schedule, ScheduleError
from pipekit.traces import CAUSES, Cause, Trace, describe_bubbles

GAP_STYLES = {
    **dict.fromkeys((Cause.WARM_UP, Cause.DRAIN, Cause.OTHER), style.IDLE_STYLE),
    **dict.fromkeys((Cause.ACTIVATION, Cause.GRADIENT), style.WAITS_FOR_PASS),
    **dict.fromkeys((Cause.TRANSFER, Cause.SUM, Cause.GLOBAL_STOP), style.WAITS_FOR_MESSAGE),
}
"""The style of the gaps between events, by what the worker waits for."""
_LIGHTEST = 0.65  # how much white the last stage of a worker has
ROOMY_PX = 4  # a bar this wide, on average, bears full edges
BESIDE, THIN = 0.43, 0.07
"""Below the middle of a row, and how high: bars of what runs beside a worker's tasks."""
LEAST_PX = 0.5  # shorter gaps cannot be seen: a measured run has thousands of them


def as_trace(source: Schedule | Trace) -> Trace:
    """Return a trace, or that of a schedule in slots; ValueError if it has no events."""
    trace = Trace.from_schedule(source) if isinstance(source, Schedule) else source
    if not isinstance(trace, Trace):
        raise TypeError(f"draw a Schedule or a Trace, e.g. run.trace, not {type(trace).__name__}")
    if trace.frame.empty:
        raise ValueError(f"{trace.name!r} has no events to draw")
    return trace


def time_scale(unit: str, longest: float) -> tuple[float, str]:
    """Return (factor, unit) that make a trace's times readable, if ``longest`` is among them."""
    return units.readable(longest, units.SECONDS) if unit == "s" else (1, unit)


def summary(trace: Trace, name: str | None = None) -> str:
    """Return a trace's title: its bubbles, makespan, and what kind of numbers they are."""
    scale, unit = time_scale(trace.unit, trace.makespan_s)
    return (
        f"{name or trace.name}: {describe_bubbles(trace.bubbles())}, "
        f"{trace.makespan_s * scale:.4g} {unit} ({trace.label})"
    )


def event_styles(trace: Trace) -> tuple[list[style.Style], NDArray[np.int32]]:
    """Return the styles that a trace's events have, in the order to draw them, and each event's.

    An op has one style, but that where workers have several stages the passes of the second stage,
    and so on, are lighter each, as in Megatron-LM's figures of interleaved schedules.
    """
    of_worker = trace.frame.groupby("worker")["stage"].rank("dense").astype(int) - 1
    places = of_worker.where(trace.frame["op"] != "UPDATE", 0)
    pairs = [*zip(trace.frame["op"], places, strict=True)]
    ranks = {name: rank for rank, name in enumerate(style.OPS)}

    def last_updates(pair: tuple[str, int]) -> tuple[bool, int, int]:
        op, place = pair
        return op == "UPDATE", place, ranks.get(op, len(ranks))

    order = sorted(dict.fromkeys(pairs), key=last_updates)
    found = []
    for op, place in order:
        look = style.of(op)
        if place:
            color = style.whiter(look.color, _LIGHTEST * (place / places.max()))
            look = look._replace(name=f"{look.name}, later stage", color=color)
        found.append(look)
    numbers = {pair: number for number, pair in enumerate(order)}
    return found, np.array([numbers[pair] for pair in pairs], np.int32)


def letters(trace: Trace, kinds: NDArray[np.int32]) -> list[str]:
    """Return the letter that a picture has for the events of each style (:func:`event_styles`)."""
    _, first = np.unique(kinds, return_index=True)
    return [Op.named(op).letter for op in trace.frame["op"].iloc[first]]


def bars(trace: Trace, scale: float, unit: str, versions: bool) -> list[go.Bar]:
    """Return a trace's events as plotly bars: first idle time (:func:`idle`), then a trace a style.

    ``scale`` turns the trace's times into those of ``unit``.
    """
    # Where bars are only pixels wide, edges must not bury the colours between them.
    room_px = style.PANEL_PX * trace.workers / len(trace.frame)
    edges = min(1, room_px / ROOMY_PX)
    found, kinds = event_styles(trace)
    numbers = trace.frame["microbatch"].astype(str)
    if trace.chunks > 1:
        chunk = (trace.frame["microbatch"] % trace.chunks).astype(str)
        numbers = (trace.frame["microbatch"] // trace.chunks).astype(str) + "." + chunk
    if versions:
        numbers = numbers + "<br>v" + trace.frame["version"].astype(str)
    drawn = idle(trace, scale, unit)
    for kind, look in enumerate(found):
        rows, text = trace.frame[kinds == kind], numbers[kinds == kind].tolist()
        start, end = (rows[column].to_numpy() * scale for column in ("start_s", "end_s"))
        summed, reads = "microbatch", "reads"
        if look == style.OPS["UPDATE"]:
            summed, reads, text = "sums up to microbatch", "makes", None
        told = rows[["worker", "stage", "microbatch", "version"]].to_numpy()
        bar = style.bar(look, rows["worker"].to_numpy(), start, end - start, edges=edges, text=text)
        drawn.append(
            go.Bar(
                bar,
                customdata=np.column_stack([told, start, end]),
                hovertemplate=(
                    f"<b>{look.name}</b>, worker %{{customdata[0]}}, stage %{{customdata[1]}}<br>"
                    f"{summed} %{{customdata[2]}}<br>{reads} version %{{customdata[3]}}<br>"
                    f"%{{customdata[4]:.6~g}} to %{{customdata[5]:.6~g}} {unit}<extra></extra>"
                ),
                legendgroup=look.name,
            )
        )
    return [*drawn, *beside(trace, scale, unit)]


def beside(trace: Trace, scale: float, unit: str) -> list[go.Bar]:
    """Return what runs beside the workers' own tasks, thin bars below theirs."""
    if trace.transfers is None:
        return []
    found = []
    for op in (op for op in OPS if op.stream and op.peer is None):
        rows = trace.transfers[trace.transfers["purpose"] == op.base_name.lower()]
        if not (rows["end_s"] > rows["start_s"]).any():
            continue
        start, end = (rows[column].to_numpy() * scale for column in ("start_s", "end_s"))
        worker = rows["source" if op.leaves else "destination"].to_numpy()
        look, of_stage = style.of(op.name), op.moves is not None and op.moves.each == "stage"
        place = BESIDE + THIN * of_stage
        told = rows[["source", "destination", "stage", "microbatch", "bytes"]].to_numpy()
        found.append(
            go.Bar(
                style.bar(look, worker + place, start, end - start, width=THIN),
                customdata=np.column_stack([told, start, end]),
                hovertemplate=(
                    f"<b>{look.name}</b>, worker %{{customdata[0]}} to %{{customdata[1]}}, stage "
                    "%{customdata[2]}, microbatch %{customdata[3]}<br>%{customdata[4]:.4~s}B, "
                    f"%{{customdata[5]:.6~g}} to %{{customdata[6]:.6~g}} {unit}<extra></extra>"
                ),
                legendgroup=look.name,
            )
        )
    return found


def idle(trace: Trace, scale: float, unit: str) -> list[go.Bar]:
    """Return the rows' background, and the gaps in which a worker waits, a bar each."""
    start, end = trace.span_s
    everywhere = pd.DataFrame({"worker": range(trace.workers), "start_s": start, "end_s": end})
    found = [_quiet(everywhere, style.IDLE_STYLE, scale, hoverinfo="skip")]
    try:
        gaps = trace.gaps()
    except ScheduleError:  # the events of a slice of a run do not say why its workers wait
        return found
    least = LEAST_PX / style.PANEL_PX * trace.makespan_s
    gaps = gaps[gaps["end_s"] - gaps["start_s"] >= least]
    looks = [GAP_STYLES[Cause(cause)] for cause in gaps["cause"]]
    meanings = {cause.value: meaning for cause, meaning in CAUSES.items()}
    told = gaps["cause"] + ": " + gaps["cause"].map(meanings)
    told += ("<br>before " + gaps["before"]).where(gaps["before"] != "", "")
    for look in dict.fromkeys(GAP_STYLES.values()):
        alike = gaps[[each == look for each in looks]]
        if not len(alike):
            continue
        spans = {"from": alike["start_s"] * scale, "to": alike["end_s"] * scale}
        hover = pd.DataFrame({"worker": alike["worker"], **spans, "told": told[alike.index]})
        drawn, more = look, {}
        if look == style.IDLE_STYLE:  # the background shows it, and stands in the legend
            drawn = look._replace(name="idle: why", color=style.TRANSPARENT)
            more = {"showlegend": False}
        found.append(
            _quiet(
                alike,
                drawn,
                scale,
                customdata=hover.to_numpy(dtype=object),
                hovertemplate="<b>idle</b>, worker %{customdata[0]}<br>%{customdata[3]}<br>"
                f"%{{customdata[1]:.6~g}} to %{{customdata[2]:.6~g}} {unit}<extra></extra>",
                **more,
            )
        )
    return found


def _quiet(rows: pd.DataFrame, look: style.Style, scale: float, **more: object) -> go.Bar:
    starts, lengths = rows["start_s"] * scale, (rows["end_s"] - rows["start_s"]) * scale
    bar = style.bar(look, rows["worker"].to_numpy(), starts.to_numpy(), lengths.to_numpy())
    return go.Bar({**bar, **more}, legendgroup=look.name, legendrank=2000)
