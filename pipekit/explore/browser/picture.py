"""A trace for the canvas: its texts, and its events, gaps and bytes as columns of bytes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import pipekit.units as units
from pipekit.plots import style
from pipekit.plots.events import GAP_STYLES, as_trace, event_styles, letters, summary, time_scale
from pipekit.plots.memory import NAME_PX, TICKS_PX
from pipekit.schedules import ScheduleError
from pipekit.traces import CAUSES, PARTS, Trace, describe_gaps

LEFT_PX = NAME_PX + TICKS_PX  # as in the kit's memory curves, so that both have one time axis
NOTES_PX, PAD_PX = 120, 16  # right of the bars, with notes and without
MEMORY_PX = 48  # the most of a worker's bytes' height


def picture(
    trace: Trace,
    notes: Sequence[str] = (),
    *,
    title: str | None = None,
    longest: float = 0.0,
    named: Collection[str] = (),
    most_bytes: float = 0.0,
    capacity: float | None = None,
    memory_px: float = MEMORY_PX,
) -> dict[str, Any]:
    """Return a trace's events, and the texts around them.

    Args:
        trace: at least one event.
        notes: lines beside each worker's row, if any.
        title: in place of the trace's name.
        longest: makespan of the longest trace on the same time axis.
        named: styles that a legend above names: if it has all, there is none here.
        most_bytes, capacity: the top of the memory's scale, or 0 for no memory; a worker's bytes.
        memory_px: the most height of a worker's bytes.
    """
    frame = as_trace(trace).frame
    clock = _Clock(trace, longest)
    found, kinds = event_styles(trace)
    return {
        "title": summary(trace, title),
        "unit": clock.unit,
        "span": clock.longest * clock.scale,
        "end": trace.makespan_s * clock.scale,
        "lanes": [f"worker {worker}" for worker in range(trace.workers)],
        "notes": list(notes),
        "left_px": LEFT_PX,
        "right_px": NOTES_PX if notes else PAD_PX,
        "legend": not {look.name for look in found} <= {*named},
        "styles": [look._asdict() for look in found],
        "letters": letters(trace, kinds),
        "idle": style.IDLE,
        "grid": style.GRID,
        "versions": bool(frame["version"].any()),
        "chunks": trace.chunks,
        "columns": _sent(
            {
                **clock.spans(frame),
                "lane": frame["worker"].to_numpy(np.int32),
                "kind": kinds,
                **{n: frame[n].to_numpy(np.int32) for n in ("stage", "microbatch", "version")},
            }
        ),
        "transfers": _transfers(trace.transfers, clock),
        "memory": _memory(trace, clock, most_bytes, capacity, memory_px) if most_bytes else None,
    }


def explained(trace: Trace, *, longest: float = 0.0) -> dict[str, Any]:
    """Return why a trace's workers are idle, and the event that each event waited for."""
    clock = _Clock(trace, longest)
    try:
        gaps, waited = trace.gaps(), trace.waited_for()
    except ScheduleError:  # the events of a slice of a run do not say why its workers wait
        return {}
    numbers = {cause.value: number for number, cause in enumerate(CAUSES)}
    columns = {
        **clock.spans(gaps),
        "lane": gaps["worker"].to_numpy(np.int32),
        "cause": gaps["cause"].map(numbers).to_numpy(np.int32),
        "waits": gaps["waits_for_row"].to_numpy(np.int32),
        "before": gaps["before_row"].to_numpy(np.int32),
    }
    return {
        "shares": describe_gaps(gaps, trace.makespan_s, trace.workers),
        "causes": causes(),
        "columns": _sent(columns),
        "waited": waited.tobytes(),
    }


def causes() -> list[dict[str, Any]]:
    """Return the causes of idle time, each with its meaning and its looks."""
    return [
        {
            "name": cause.value,
            "meaning": meaning,
            "style": GAP_STYLES[cause]._asdict(),
            "own": style.CAUSES[cause.value]._asdict(),
        }
        for cause, meaning in CAUSES.items()
    ]


class _Clock:
    """From a trace's times to the canvas's, which begin at 0 and are in a readable unit."""

    def __init__(self, trace: Trace, longest: float) -> None:
        self.longest = max(longest, trace.makespan_s)
        self.since = trace.span_s[0]
        self.scale, self.unit = time_scale(trace.unit, self.longest)

    def of(self, times: pd.Series) -> NDArray[np.float32]:
        shown: NDArray[np.float32] = ((times - self.since) * self.scale).to_numpy(np.float32)
        return shown

    def spans(self, frame: pd.DataFrame) -> dict[str, NDArray[np.float32]]:
        return {"start": self.of(frame["start_s"]), "end": self.of(frame["end_s"])}


def _transfers(sent: pd.DataFrame | None, clock: _Clock) -> dict[str, Any] | None:
    if sent is None or sent.empty:
        return None
    purpose, purposes = pd.factorize(sent["purpose"])
    ends = {name: sent[name].to_numpy(np.int32) for name in ("source", "destination")}
    columns = {**clock.spans(sent), **ends, "purpose": purpose.astype(np.int32)}
    return {"columns": _sent(columns), "purposes": purposes.tolist()}


def _memory(
    trace: Trace, clock: _Clock, most_bytes: float, capacity: float | None, most_px: float
) -> dict[str, Any]:
    """Return each worker's bytes over time, each part with all that lie below it."""
    assert trace.memory is not None
    frame = trace.memory.frame
    parts = [part for part in PARTS if frame[part].any()]
    per_byte, unit = units.readable(most_bytes, units.BYTES)
    columns = {
        "time": clock.of(frame["time_s"]),
        "lane": frame["worker"].to_numpy(np.int32),
        "held": (frame[parts].cumsum(axis=1) * per_byte).to_numpy(np.float32),
    }
    return {
        "columns": _sent(columns),
        "styles": [style.PARTS[part]._asdict() for part in parts],
        "unit": unit,
        "top": most_bytes * per_byte,
        "top_text": units.written(most_bytes, units.BYTES),
        "capacity": None if capacity is None else capacity * per_byte,
        "most_px": most_px,
    }


def _sent(columns: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(column).tobytes() for name, column in columns.items()}
