"""A schedule of one's own, as text: checked, drawn, simulated, and trained with."""

import re
from collections.abc import Iterator
from functools import partial
from html import escape
from typing import Annotated

import ipywidgets as widgets

import pipekit as pk
from pipekit.explore.page.explorer import Explorer, explore
from pipekit.explore.page.view import Timeline, View
from pipekit.units import listed

PICTURE = str(pk.schedules.flush(3, 4).take(2))
_ROW = re.compile(r"^[ \t]*(worker (\d+))(?: stage (\d+))?[ \t]*\|", re.MULTILINE)
_WRITTEN = re.compile(r"[A-Z^][^\s/^&]*")
Place = tuple[int, int]  # the characters from the first to the one before the second
_TEXT = "white-space: pre; overflow-x: auto; line-height: 1.4;"
PRESETS = {
    schedule.name: {"picture": str(schedule)}
    for schedule in (
        pk.schedules.gpipe(3, 4).take(1),
        pk.schedules.flush(3, 4).take(2),
        pk.schedules.pipedream(3).take(6),
        pk.schedules.two_bw(3, 3).take(3),
        pk.schedules.zb_h1(3, 4).take(1),
        pk.schedules.interleaved(4, 4, workers=2).take(1),
    )
}


def text_area() -> widgets.Textarea:
    """Return the control of a picture."""
    area = widgets.Textarea(rows=8, layout={"width": "auto"}, continuous_update=True)
    area.add_class("pipekit-picture")
    return area


def see(picture: Annotated[str, text_area] = PICTURE) -> View:
    """Return a picture's schedule, drawn in time slots and simulated as the network's training."""
    from pipekit.explore.training import split  # here, since torch takes seconds

    schedule = pk.schedules.parse(picture)
    report = pk.schedules.check(schedule)
    drawn = pk.Trace.from_schedule(schedule)
    simulated = pk.simulate(schedule, *split(schedule))
    return View(
        text=f"executable: no worker waits for ever; weight slots, a worker: "
        f"{listed(report.peak_versions)}; "
        f"{'microbatches' if schedule.chunks == 1 else 'chunks'} in flight: "
        f"{listed(report.peak_in_flight)} (exact)",
        timelines=[
            Timeline(drawn, title=f"{schedule.title}, as drawn"),
            Timeline(simulated, title=f"{schedule.title}, predicted for a core a worker"),
        ],
    )


def trained(picture: str = PICTURE) -> View:
    """Return :func:`see` with a real training by the engine."""
    from pipekit.explore.training import with_training

    return with_training(see(picture), pk.schedules.parse(picture))


def faults(picture: str, error: ValueError) -> list[Place]:
    """Return the characters of a picture's cells at fault; only a ScheduleError says where.

    A missing task has no cell: then the names of the rows that have its stage are at fault.
    """
    if not isinstance(error, pk.ScheduleError):
        return []
    if error.line is not None:
        line = [*re.finditer("^.*$", picture, re.MULTILINE)][error.line - 1]
        if error.column is None:
            return [line.span()]
        cell = re.compile(r"\S+|.*").match(picture, line.start() + error.column - 1)
        return [cell.span()] if cell else []
    named = {
        (task.label, task.stage, worker)
        for task, worker in zip(error.tasks, error.workers, strict=True)
    }
    places = [
        place
        for (label, stage, worker), place in _cells(picture)
        if {(label, stage, worker), (label, stage, None)} & named
    ]
    stages = {task.stage for task in error.tasks}
    rows = (row for row in _ROW.finditer(picture) if int(row[3] or row[2]) in stages)
    return sorted(places) or [row.span(1) for row in rows]


def marked(picture: str, error: ValueError) -> str:
    """Return the picture as HTML, with the cells marked that an error is about."""
    html, end = "", 0
    for start, stop in faults(picture, error):
        html += f"{escape(picture[end:start])}<mark>{escape(picture[start:stop])}</mark>"
        end = stop
    return html + escape(picture[end:])


def _cells(picture: str) -> Iterator[tuple[tuple[str, int, int], Place]]:
    """Yield the label, stage and worker of each task of a picture, and its place."""
    workers = pk.schedules.parse(picture).workers
    for row in _ROW.finditer(picture):
        worker, end = int(row[2]), picture.find("\n", row.end())
        written = _WRITTEN.finditer(picture, row.end(), end if end >= 0 else len(picture))
        for task, cell in zip(workers[worker], written, strict=True):
            yield (task.label, task.stage, worker), cell.span()


class OwnSchedule(Explorer):
    """The text area, where an error is marked, and a button that trains."""

    def controls_box(self) -> widgets.Widget:
        self._marks = widgets.HTML()
        look = {"icon": "play", "button_style": "primary"}
        self._button = widgets.Button(description="Train with it", **look)
        self._button.on_click(self._train)
        return widgets.VBox([self._controls["picture"], self._button, self._marks])

    def complain(self, error: ValueError) -> None:
        """Say what is wrong, and mark where."""
        super().complain(error)
        self._button.disabled, self._marks.value = True, ""
        picture = self.values()["picture"]
        if faults(picture, error):
            self._marks.value = f'<pre style="{_TEXT}">{marked(picture, error)}</pre>'

    def show(self, view: View) -> None:
        self._button.disabled = False
        self._marks.value = ""
        super().show(view)

    def _train(self, _button: widgets.Button) -> None:
        self._button.disabled, self._button.description = True, "training ..."
        try:
            self.show(trained(**self.values()))
        except ValueError as error:
            self.complain(error)
        finally:
            self._button.description = "Train with it"


WAITS_FOR = "loading torch and timing the network's layers on this machine, once"
own_schedule = partial(
    explore, see, explorer=OwnSchedule, executed=trained, presets=PRESETS, waits_for=WAITS_FOR
)
