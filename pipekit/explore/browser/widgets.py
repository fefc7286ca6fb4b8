"""The widgets of an explorer: timelines on a canvas, charts, and the bar with its setting."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

from pipekit.explore.browser.picture import explained, picture
from pipekit.explore.browser.standalone import HERE, SCRIPTS, STYLES
from pipekit.traces import Trace


class TimelineCanvas(anywidget.AnyWidget):
    """A trace as bars, painted by the browser from typed arrays.

    ``plots.timeline`` is the same picture as a plotly figure, for files and pages without a kernel.
    Dragging pans, the wheel with Ctrl zooms, a double click shows all; so do the arrows, ``+``,
    ``-`` and ``0``.  Dragging with Shift measures a time.  Hovering a pass outlines its microbatch;
    hovering a gap says who waits for whom, and why the other is late; a click draws all that an
    event waited for.  ``c`` shows the critical path, space plays the run as a film, ``,`` and ``.``
    step from task to task.

    Attributes:
        picture, why: from :func:`picture`; from :func:`explained`, once the browser asks for it.
        view, until: the times (from, to) that are shown, empty for all; the time until which the
            run is shown, -1 for all of it; in the picture's unit.
        colored: the source of colours: "op", "version", "stage" or "cause" (of idleness).
        critical, transfers: whether the critical path, or messages, are drawn.
    """

    _esm = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    _css = STYLES
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
        """Replace what is shown, and show all of it; ``longest`` and ``how`` go to picture()."""
        self._trace, self._longest = trace, longest
        shown = picture(trace, longest=longest, **how)
        with self.hold_sync():
            self.view, self.until = [], -1.0
            self.picture, self.why = shown, {}

    def _explain(self, _widget: object, content: Any, _buffers: object) -> None:
        if content == "why" and self._trace is not None and not self.why:
            self.why = explained(self._trace, longest=self._longest)


class Chart(anywidget.AnyWidget):
    """A plotly figure, as JSON, which changes in place.

    Plotly's ``FigureWidget`` saves five megabytes in every notebook that shows one.
    """

    _esm = HERE / "chart.js"
    _css = STYLES
    figure = traitlets.Unicode().tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.on_msg(self._send_plotly)

    def show(self, figure: go.Figure) -> None:
        """Replace the figure."""
        self.figure = figure.to_json()

    def _send_plotly(self, _widget: object, content: Any, _buffers: object) -> None:
        """Answer the first chart of a page, which asks for the library."""
        if content == "plotly":
            self.send({}, [get_plotlyjs().encode()])


class Setting(anywidget.AnyWidget):
    """The bar above the controls: presets, the setting as Python, and waits."""

    _esm = HERE / "setting.js"
    _css = STYLES
    presets = traitlets.List(traitlets.Unicode()).tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)
    waits_for = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        presets: Mapping[str, Mapping[str, Any]],
        waits_for: str,
        go: Callable[[Mapping[str, Any]], None],
    ):
        """Make the bar; ``go`` gets a preset's values."""
        super().__init__(presets=[*presets], waits_for=waits_for)
        self._presets, self._go = presets, go
        self.on_msg(self._asked)

    def show(self, see: Callable[..., Any], values: Mapping[str, Any]) -> None:
        """Say what is shown: what ``see`` returns for these values."""
        self.code = code(see, values)

    def _asked(self, _widget: object, content: Any, _buffers: object) -> None:
        self._go(self._presets[content["preset"]])


def code(see: Callable[..., Any], values: Mapping[str, Any]) -> str:
    """Return Python that calls ``see``; what it was given beforehand goes by its own names."""
    function = see.func if isinstance(see, partial) else see
    given = [*inspect.signature(function).parameters][: len(getattr(see, "args", ()))]
    arguments = [*given, *(f"{name}={_written(value)}" for name, value in values.items())]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"from {function.__module__} import see\n\nview = see(\n{lines})\n"


def _written(value: Any) -> str:
    return 'float("inf")' if value == math.inf else repr(value)
