"""A timeline that answers at once: bars, why workers are idle, and their bytes, on one canvas."""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from pipekit.explore.browser.picture import explained, picture
from pipekit.traces import Trace

HERE = Path(__file__).parent
SCRIPTS = "pen.js", "paint.js", "canvas.js"
"""One module to the browser: what paints, what is painted, and what is done with it."""


class TimelineCanvas(anywidget.AnyWidget):
    """A trace as bars, painted by the browser from typed arrays.

    ``plots.timeline`` is the same picture as a plotly figure, for files and pages without a kernel;
    that takes seconds to show from some thousand bars on, where this takes milliseconds.  Dragging
    pans, the wheel with Ctrl zooms, a double click shows all; so do the arrows, ``+``, ``-`` and
    ``0``.  Dragging with Shift measures a time.  Hovering a pass outlines its microbatch
    everywhere; hovering a gap says who waits for whom, and why that one is late; a click draws all
    that an event waited for.  ``c`` shows the critical path, space plays the run as a film, ``,``
    and ``.`` step from task to task.

    The browser paints the bars as soon as it has them, and asks then why there are gaps.

    Attributes:
        picture: what :func:`picture` returns.
        why: what :func:`explained` returns, once the browser has asked for it; empty until then.
        view: the times (from, to) that are shown, in the picture's unit; empty for all.
        until: the time until which the run is shown, in the picture's unit; -1 for all of it.
        colored: what bars have their colour by: "op", "version", "stage" or "cause" (then the
            bars are pale, and each cause of idleness has its own).
        critical: whether the critical path is drawn.
        transfers: whether messages are drawn.
    """

    _esm = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    _css = HERE / "explore.css"
    picture = traitlets.Dict().tag(sync=True)
    why = traitlets.Dict().tag(sync=True)
    view = traitlets.List(traitlets.Float()).tag(sync=True)
    until = traitlets.Float(-1.0).tag(sync=True)
    colored = traitlets.Enum(["op", "version", "stage", "cause"], "op").tag(sync=True)
    critical = traitlets.Bool(False).tag(sync=True)
    transfers = traitlets.Bool(False).tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self._trace: Trace | None = None
        self._longest = 0.0
        self.on_msg(self._explain)

    def show(self, trace: Trace, *, longest: float = 0.0, **how: Any) -> None:
        """Replace what is shown, and show all of it.

        Args:
            trace: at least one event.
            longest: as for :func:`picture`.
            how: likewise.
        """
        self._trace, self._longest = trace, longest
        shown = picture(trace, longest=longest, **how)
        with self.hold_sync():
            self.view, self.until = [], -1.0
            self.picture, self.why = shown, {}

    def _explain(self, _widget: object, content: Any, _buffers: object) -> None:
        if content == "why" and self._trace is not None and not self.why:
            self.why = explained(self._trace, longest=self._longest)
