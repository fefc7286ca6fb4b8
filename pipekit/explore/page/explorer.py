"""Controls above, pictures below: what all explorers share, live and as static figures."""

import inspect
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from pipekit.choices import require_choice
from pipekit.explore.browser.picture import MEMORY_PX
from pipekit.explore.browser.widgets import Chart, Setting, TimelineCanvas
from pipekit.explore.page.controls import declared, require_value
from pipekit.explore.page.view import View, static, still, styled

See = Callable[..., View]
"""From the values of the controls, by name, to what to show; its defaults are the first setting."""
Presets = Mapping[str, Mapping[str, Any]]  # by name

_GRID = "repeat(auto-fill, minmax(min(330px, 100%), 1fr))"
_ERROR = "border-left: 4px solid #D55E00; padding: 2px 10px; white-space: pre-wrap;"
_TEXT = "white-space: pre-wrap; padding: 2px 0; line-height: 1.4;"
_SHARED = "view", "until", "colored", "critical", "transfers"
"""What all timelines in one unit have in common."""


def preset(**values: Any) -> dict[str, Any]:
    """Return a preset; controls that it does not name are at their defaults."""
    return values


class Explorer(widgets.VBox):  # type: ignore[misc]  # ipywidgets is not annotated
    """Controls, by the names of ``see``'s arguments, and its view of them from :meth:`begin` on.

    The answer to a setting that cannot be is its error's sentence, above the pictures of the last
    one that could.  The browser holds slider moves back while the kernel is busy.
    """

    def __init__(
        self,
        see: See,
        controls: Mapping[str, widgets.ValueWidget],
        start: Mapping[str, Any],
        presets: Presets | None = None,
        waits_for: str = "simulating",
    ) -> None:
        self._see, self._controls = see, controls
        self._first = {name: p.default for name, p in inspect.signature(see).parameters.items()}
        self._is_set = False
        self._set({**self._first, **start})
        for control in controls.values():
            control.observe(self._changed, names="value")
        self._setting = Setting(presets or {}, waits_for, self.go)
        self._message = widgets.HTML()
        self._text = widgets.HTML()
        self.view: View | None = None  # that is shown
        self._timelines, self._plots = widgets.VBox(), widgets.VBox()
        self._table = widgets.HTML()
        self._table.add_class("jp-RenderedHTMLCommon")
        self._text.add_class("jp-RenderedHTMLCommon")
        self._seen = widgets.VBox([self._text, self._timelines, self._plots, self._table])
        self._seen.add_class("pipekit-seen")
        head = widgets.VBox([self._setting, self.controls_box()])
        head.add_class("pipekit-controls")
        super().__init__([head, self._message, self._seen])
        self.add_class("pipekit-explorer")

    def begin(self) -> None:
        """Show the first setting; the controls may be on the page already."""
        self._changed()

    def controls_box(self) -> widgets.Widget:
        layout = {"grid_template_columns": _GRID, "grid_gap": "4px 24px", "width": "100%"}
        return widgets.GridBox([*self._controls.values()], layout=layout)

    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self._controls.items()}

    def go(self, values: Mapping[str, Any]) -> None:
        """Set some controls, and the others to their defaults."""
        self._set({**self._first, **values})
        self._changed()

    def complain(self, error: ValueError) -> None:
        self._message.value = f'<div style="{_ERROR}">{escape(str(error))}</div>'
        self._seen.add_class("pipekit-stale")

    def show(self, view: View) -> None:
        self.view = view
        self._message.value = ""
        self._seen.remove_class("pipekit-stale")
        self._text.value = f'<div style="{_TEXT}">{escape(view.text)}</div>' if view.text else ""
        self._show_timelines(view)
        if len(view.plots) != len(self._plots.children):
            self._plots.children = [Chart() for _ in view.plots]
        for chart, plot in zip(self._plots.children, view.plots.values(), strict=True):
            chart.show(plot.figure)
        self._table.value = "" if view.table is None else styled(view).to_html()

    def _show_timelines(self, view: View) -> None:
        if len(view.timelines) != len(self._timelines.children):
            self._timelines.children = [TimelineCanvas() for _ in view.timelines]
            first: dict[str, TimelineCanvas] = {}  # of those in a unit, which move together
            for canvas, timeline in zip(self._timelines.children, view.timelines, strict=True):
                leader = first.setdefault(timeline.trace.unit, canvas)
                for shared in _SHARED if leader is not canvas else ():
                    widgets.jslink((leader, shared), (canvas, shared))
        traces = [timeline.trace for timeline in view.timelines]
        named: set[str] = set()  # styles, by a legend above
        for canvas, timeline in zip(self._timelines.children, view.timelines, strict=True):
            unit = timeline.trace.unit
            canvas.show(
                timeline.trace,
                notes=timeline.notes,
                title=timeline.title,
                longest=max(trace.makespan_s for trace in traces if trace.unit == unit),
                named=named,
                most_bytes=max(t.most_bytes for t in view.timelines) * timeline.memory,
                capacity=timeline.capacity,
                memory_px=MEMORY_PX if len(traces) > 1 else 2 * MEMORY_PX,
            )
            named.update(look["name"] for look in canvas.picture["styles"])

    def _set(self, values: Mapping[str, Any]) -> None:
        self._is_set = False
        for name, control in self._controls.items():
            control.value = values[name]
        self._is_set = True

    def _changed(self, _change: object = None) -> None:
        if not self._is_set:
            return
        values = self.values()
        self._setting.busy = True
        try:
            view = self._see(**values)
        except ValueError as error:
            self.complain(error)
        else:
            self.show(view)
            self._setting.show(self._see, values)
        finally:
            self._setting.busy = False


def explore(
    see: See,
    interactive: bool,
    results_dir: str | Path,
    *,
    explorer: type[Explorer] = Explorer,
    executed: See | None = None,
    presets: Presets | None = None,
    waits_for: str = "simulating",
    **start: Any,
) -> None:
    """Display an explorer, or the static figures of the setting that it would begin with.

    Args:
        see: from the values of the controls, which it declares, to the view of them.
        interactive: False where nobody moves a slider, as under papermill.
        results_dir: the folder for the static figures.
        explorer, executed: the kind of explorer; what static figures see in place of ``see``.
        presets, waits_for: settings to go to; the reason for a delay, if ``see`` takes long.
        start: the controls' first values; by default those of ``see``.

    Raises:
        ValueError: there is no such control, or it cannot have such a value.
    """
    made = {name: make() for name, make in declared(see).items()}
    for name, value in start.items():
        require_choice("the setting", name, made)
        require_value(made[name], value)
    if interactive:
        live = explorer(see, made, start, presets, waits_for)
        display(live)  # at once, with what is waited for
        live.begin()
        if live.view is not None:
            still(live.view)
    else:
        static((executed or see)(**start), results_dir)
