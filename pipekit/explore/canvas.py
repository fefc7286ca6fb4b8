"""A timeline that answers at once: tens of thousands of bars on a canvas, with zoom and hover."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from pipekit.plots import style
from pipekit.plots.event_styles import event_styles
from pipekit.plots.memory import TICKS_PX
from pipekit.plots.timeline import summary, time_scale
from pipekit.plots.worker_panels import NAME_PX
from pipekit.traces import Trace

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
    ``0``.

    Attributes:
        picture: what :func:`picture` returns.
        view: the times (from, to) that are shown, in the picture's unit; empty for all.
    """

    _esm = HERE / "canvas.js"
    _css = HERE / "explore.css"
    picture = traitlets.Dict().tag(sync=True)
    view = traitlets.List(traitlets.Float()).tag(sync=True)

    def show(self, picture: dict[str, Any]) -> None:
        """Replace the picture, and show all of it."""
        with self.hold_sync():
            self.view = []
            self.picture = picture


def picture(
    trace: Trace,
    notes: Sequence[str] = (),
    *,
    title: str | None = None,
    longest: float = 0.0,
    legend: bool = True,
) -> dict[str, Any]:
    """Return what the canvas needs of a trace: its texts, and its events as columns of bytes.

    Args:
        trace: at least one event.
        notes: what to write beside each worker's row, if anything.
        title: in place of the trace's name.
        longest: makespan of the longest trace with which this one is to share its time axis.
        legend: whether to name the ops.

    Raises:
        ValueError: the trace has no events.
    """
    frame = trace.frame
    if frame.empty:
        raise ValueError(f"{trace.name!r} has no events to draw")
    longest = max(longest, trace.makespan_s)
    scale, unit = time_scale(trace.unit, longest)
    found, kinds = event_styles(trace)
    since = frame["start_s"].min()
    columns = {
        "start": ((frame["start_s"] - since) * scale).to_numpy(np.float32),
        "end": ((frame["end_s"] - since) * scale).to_numpy(np.float32),
        "lane": frame["worker"].to_numpy(np.int32),
        "kind": kinds,
        **{name: frame[name].to_numpy(np.int32) for name in ("stage", "microbatch", "version")},
    }
    return {
        "title": summary(trace, title),
        "unit": unit,
        "span": longest * scale,
        "lanes": [f"worker {worker}" for worker in range(trace.workers)],
        "notes": list(notes),
        "left_px": LEFT_PX,
        "right_px": NOTES_PX if notes else PAD_PX,
        "legend": legend,
        "styles": [look._asdict() for look in found],
        "idle": style.IDLE,
        "grid": style.GRID,
        "versions": bool(frame["version"].any()),
        "columns": {name: column.tobytes() for name, column in columns.items()},
    }
