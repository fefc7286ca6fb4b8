"""A timeline that answers at once: bars, why workers are idle, and their bytes, on one canvas."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from numpy.typing import NDArray

from pipekit.plots import style, units
from pipekit.plots.timelines.event_styles import event_styles
from pipekit.plots.timelines.idle import STYLES, visible_gaps
from pipekit.plots.timelines.memory import TICKS_PX
from pipekit.plots.timelines.timeline import summary, time_scale
from pipekit.plots.timelines.worker_panels import NAME_PX
from pipekit.schedules import ScheduleError
from pipekit.traces import PARTS, Trace

HERE = Path(__file__).parent
LEFT_PX = NAME_PX + TICKS_PX
"""As in the kit's memory curves, so that both have one time axis."""
NOTES_PX, PAD_PX = 205, 16
"""Right of the bars, with notes and without."""


class TimelineCanvas(anywidget.AnyWidget):
    """A trace as bars, painted by the browser from typed arrays.

    ``plots.timeline`` is the same picture as a plotly figure, for files and pages without a kernel;
    that takes seconds to show from some thousand bars on, where this takes milliseconds.  Dragging
    pans, the wheel with Ctrl zooms, a double click shows all; so do the arrows, ``+``, ``-`` and
    ``0``.  Dragging with Shift measures a time.  Hovering a pass outlines its microbatch
    everywhere; hovering a gap says who waits for whom.  ``c`` shows the critical path, and space
    plays the run as a film.

    Attributes:
        picture: what :func:`picture` returns.
        view: the times (from, to) that are shown, in the picture's unit; empty for all.
        until: the time until which the run is shown, in the picture's unit; -1 for all of it.
    """

    _esm = HERE / "canvas.js"
    _css = HERE / "explore.css"
    picture = traitlets.Dict().tag(sync=True)
    view = traitlets.List(traitlets.Float()).tag(sync=True)
    until = traitlets.Float(-1.0).tag(sync=True)

    def show(self, picture: dict[str, Any]) -> None:
        """Replace the picture, and show all of it."""
        with self.hold_sync():
            self.view, self.until = [], -1.0
            self.picture = picture


def picture(
    trace: Trace,
    notes: Sequence[str] = (),
    *,
    title: str | None = None,
    longest: float = 0.0,
    legend: bool = True,
    most_bytes: float = 0.0,
    capacity: float | None = None,
) -> dict[str, Any]:
    """Return what the canvas needs of a trace: its texts, and its events as columns of bytes.

    Args:
        trace: at least one event.
        notes: what to write beside each worker's row, if anything.
        title: in place of the trace's name.
        longest: makespan of the longest trace with which this one is to share its time axis.
        legend: whether to name the ops.
        most_bytes: the top of the memory's scale, or 0 to leave the memory out.
        capacity: of a worker, in bytes: a dashed line.

    Raises:
        ValueError: the trace has no events.
    """
    frame = trace.frame
    if frame.empty:
        raise ValueError(f"{trace.name!r} has no events to draw")
    longest = max(longest, trace.makespan_s)
    scale, unit = time_scale(trace.unit, longest)
    found, kinds = event_styles(trace)
    gaps = visible_gaps(trace)
    looks = list(dict.fromkeys(STYLES.values()))
    since = frame["start_s"].min()
    columns = {
        "start": ((frame["start_s"] - since) * scale).to_numpy(np.float32),
        "end": ((frame["end_s"] - since) * scale).to_numpy(np.float32),
        "lane": frame["worker"].to_numpy(np.int32),
        "kind": kinds,
        **{name: frame[name].to_numpy(np.int32) for name in ("stage", "microbatch", "version")},
    }
    gap_columns = {
        "start": ((gaps["start_s"] - since) * scale).to_numpy(np.float32),
        "end": ((gaps["end_s"] - since) * scale).to_numpy(np.float32),
        "lane": gaps["worker"].to_numpy(np.int32),
        "kind": np.array([looks.index(look) for look in gaps["look"]], np.int32),
    }
    return {
        "title": summary(trace, title),
        "unit": unit,
        "span": longest * scale,
        "end": trace.makespan_s * scale,
        "lanes": [f"worker {worker}" for worker in range(trace.workers)],
        "notes": list(notes),
        "left_px": LEFT_PX,
        "right_px": NOTES_PX if notes else PAD_PX,
        "legend": legend,
        "styles": [look._asdict() for look in found],
        "idle": style.IDLE,
        "grid": style.GRID,
        "versions": bool(frame["version"].any()),
        "columns": _sent(columns),
        "gaps": {
            "columns": _sent(gap_columns),
            "styles": [look._asdict() for look in looks],
            "told": gaps["told"].tolist(),
        },
        "critical": _critical(trace),
        "memory": _memory(trace, since, scale, most_bytes, capacity) if most_bytes else None,
    }


def _critical(trace: Trace) -> list[int]:
    """Return the positions of the critical path's events; none for a slice of a run."""
    key = ["worker", "op", "stage", "microbatch"]
    try:
        path = trace.critical_path()[key]
    except ScheduleError:
        return []
    places = trace.frame[key].assign(place=range(len(trace.frame)))
    found: list[int] = path.merge(places, "left", key)["place"].tolist()
    return found


def _memory(
    trace: Trace, since: float, scale: float, most_bytes: float, capacity: float | None
) -> dict[str, Any]:
    """Return each worker's bytes over time, each part with all that lie below it."""
    assert trace.memory is not None
    frame = trace.memory.frame
    parts = [part for part in PARTS if frame[part].any()]
    per_byte, unit = units.readable(most_bytes, units.BYTES)
    columns = {
        "time": ((frame["time_s"] - since) * scale).to_numpy(np.float32),
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
    }


def _sent(columns: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(column).tobytes() for name, column in columns.items()}
