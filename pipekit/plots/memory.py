"""What lies in every worker's memory, over time."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import pipekit.units as units
from pipekit.plots import style
from pipekit.traces.memory import PARTS, Memory

GAP_PX = 12  # between two panels
NAME_PX, TICKS_PX = 68, 40
"""Of the left margin, for "worker 15", and for the numbers along the axis of bytes."""
LEAST_PX, MOST_PX, ALL_PX = 44, 180, 560
"""Of a panel's height; of all panels' together, unless they get too low."""
TICK_PX = 22  # from a number along the vertical axis to the next
PEAK_PX, BOTH_PEAKS_PX = 108, 162
"""Of the right margin, for "peak 12.34 GB", and for "12.34 GB simulated" below it."""


def memory(
    memory: Memory,
    other: Memory | None = None,
    *,
    title: str | None = None,
    capacity: float | None = None,
    other_name: str | None = None,
) -> go.Figure:
    """Draw what lies in memory as steps, part upon part, in a panel for each worker.

    Each worker's peak is marked where it is first reached; the title gives the highest.

    Args:
        memory: drawn as areas, without the parts of which there is never anything.
        other: of the same workers: its total is drawn as a line, in its own time.
        title: what is shown, without peaks and labels; by default "Memory".
        capacity: of a worker, in bytes: drawn as a dashed line.
        other_name: of the other memory, in the legend; by default its label.

    Raises:
        ValueError: a frame is empty or lacks a column, or ``other`` has other workers.
    """
    tables = [_table(each) for each in (memory, other) if each is not None]
    workers, *others = (table["worker"].unique().tolist() for table in tables)
    if others and others[0] != workers:
        raise ValueError(f"the other memory is that of workers {others[0]}, not {workers}")
    start = min(table["time_s"].min() for table in tables)
    end = max(table["time_s"].max() for table in tables)
    if start == end:
        end = start + 1  # what never changes is drawn for a second
    top = max(*(table["total"].max() for table in tables), capacity or 0) or 1
    per_s, second = units.readable(end - start, units.SECONDS)
    per_byte, byte = units.readable(top, units.BYTES)
    for table in tables:
        table["time_s"] *= per_s
        table[[*PARTS, "total"]] *= per_byte
    ends = start * per_s, end * per_s

    heading, margin = f"{title or 'Memory'}: at most {_most(memory, workers)}", PEAK_PX
    if other is not None:
        name = f"{other_name} " if other_name else ""
        heading, margin = f"{heading}, {name}{_most(other, workers)}", BOTH_PEAKS_PX
    row_px = max(LEAST_PX, min(MOST_PX, ALL_PX / len(workers)))
    plot_px = len(workers) * (row_px + GAP_PX) - GAP_PX
    figure = make_subplots(len(workers), shared_xaxes=True, vertical_spacing=GAP_PX / plot_px)
    figure.update_layout(style.layout(plot_px, heading))
    figure.update_layout(margin={"l": NAME_PX + TICKS_PX, "r": margin})
    figure.update_xaxes(style.axis(range=ends))
    figure.update_xaxes(style.axis(f"time ({second})"), row=len(workers))
    ticks = 1 + int(row_px / TICK_PX)
    figure.update_yaxes(style.axis(range=[0, 1.08 * top * per_byte], nticks=ticks))
    _write_beside(figure, [f"worker {worker}" for worker in workers], 0, "right", -TICKS_PX)
    parts = [part for part in PARTS if tables[0][part].any()]
    peaks = []
    for row, worker in enumerate(workers, start=1):
        held, *beside = (table[table["worker"] == worker] for table in tables)
        here = [*_areas(held, parts, ends[1], f"worker {worker}, %{{x:.6~g}} {second}", byte)]
        peak = held.loc[held["total"].idxmax()]
        text = f"peak {units.written(peak['total'] / per_byte, units.BYTES)}"
        if other is not None:
            here += _total(beside[0], ends[1], other_name or other.label)
            theirs = units.written(beside[0]["total"].max() / per_byte, units.BYTES)
            text += f"<br>{theirs} {other_name or other.label}"
        if capacity is not None:
            name = f"capacity, {units.memory_text(capacity)}"
            dashed = {"color": style.GREY, "dash": "dash", "width": 1.5}
            here.append(_quiet(ends, [capacity * per_byte] * 2, "lines", name=name, line=dashed))
        dot = {"color": style.GREY, "symbol": "circle", "size": 6}
        here.append(_quiet([peak["time_s"]], [peak["total"]], "markers", marker=dot))
        for trace in here:  # in the legend once for all of a name
            group = trace.get("name")
            trace |= {"legendgroup": group, "showlegend": bool(group) and row == 1}
            figure.add_scatter(**trace, row=row, col=1)
        peaks.append(text)
    _write_beside(figure, peaks, 1, "left", 8)
    above = {"y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 8, "showarrow": False}
    return figure.add_annotation(text=byte, x=0, xref="paper", xanchor="right", xshift=-8, **above)


def _table(memory: Memory) -> pd.DataFrame:
    style.require(memory.frame, ("worker", "time_s", *PARTS))
    return memory.frame.astype(dict.fromkeys(PARTS, float)).assign(total=memory.total)


def _areas(
    held: pd.DataFrame, parts: list[str], end: float, when: str, byte: str
) -> Iterator[dict[str, Any]]:
    for part in parts:
        look = style.PARTS[part]
        yield {
            **_steps(held["time_s"], held[part], end),
            "name": look.name,
            "stackgroup": "parts",
            "mode": "lines",
            "line": {"shape": "hv", "width": 0},
            "fillcolor": look.color,
            "fillpattern": style.pattern(look),
            "hovertemplate": f"{when}: %{{y:.4~g}} {byte} of {look.name}<extra></extra>",
        }


def _total(held: pd.DataFrame, end: float, name: str) -> list[dict[str, Any]]:
    """Return a line, after what sets it off from the areas beneath it, in greyscale too."""
    line = {**_steps(held["time_s"], held["total"], end), "name": f"total, {name}", "mode": "lines"}
    look = {**style.line(0), "shape": "hv"}
    halo = {**look, "color": "rgba(255,255,255,0.7)", "width": 5}
    return [{**line, "name": None, "line": halo, "hoverinfo": "skip"}, {**line, "line": look}]


def _quiet(x: Sequence[float], y: Sequence[float], mode: str, **more: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "mode": mode, "hoverinfo": "skip", **more}


def _most(memory: Memory, workers: list[int]) -> str:
    peak = max(memory.peak_bytes)
    where = f" on worker {workers[memory.peak_bytes.index(peak)]}" if len(workers) > 1 else ""
    return f"{units.written(peak, units.BYTES)}{where} ({memory.label})"


def _write_beside(figure: go.Figure, texts: list[str], x: int, anchor: str, shift: int) -> None:
    """Write a text at half the height of each panel, at ``x`` of its width."""
    place = {"x": x, "xref": "paper", "xanchor": anchor, "xshift": shift, "yref": "paper"}
    for text, axis in zip(texts, figure.select_yaxes(), strict=True):
        middle = sum(axis.domain) / 2
        figure.add_annotation(text=text, y=middle, yanchor="middle", showarrow=False, **place)


def _steps(times: pd.Series, values: pd.Series, end: float) -> dict[str, np.ndarray]:
    """Return the x and y of what holds from each time to the next, and the last to the end."""
    return {"x": np.append(times, end), "y": np.append(values, values.iloc[-1])}
