"""A schedule of one's own, as text: checked, drawn, and trained with."""

from functools import partial
from typing import Annotated

import ipywidgets as widgets

import pipekit as pk
from pipekit.explore.page.explorer import Explorer, explore
from pipekit.explore.page.view import Timeline, View
from pipekit.units import listed

PICTURE = str(pk.schedules.flush(3, 4).take(2))
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
    """Return a picture's schedule, drawn in time slots."""
    schedule = pk.schedules.parse(picture)
    report = pk.schedules.check(schedule)
    drawn = Timeline(pk.Trace.from_schedule(schedule), title=f"{schedule.title}, as drawn")
    return View(
        text=f"executable: no worker waits for ever; weight slots, a worker: "
        f"{listed(report.peak_versions)}; "
        f"{'microbatches' if schedule.chunks == 1 else 'chunks'} in flight: "
        f"{listed(report.peak_in_flight)} (exact)",
        timelines=[drawn],
    )


def trained(picture: str = PICTURE) -> View:
    """Return :func:`see` with a real training by the engine."""
    from pipekit.explore.training import with_training  # here, since torch takes seconds

    return with_training(see(picture), pk.schedules.parse(picture))


class OwnSchedule(Explorer):
    """The text area, and a button that trains unless the picture is refused."""

    def controls_box(self) -> widgets.Widget:
        look = {"icon": "play", "button_style": "primary"}
        self._button = widgets.Button(description="Train with it", **look)
        self._button.on_click(self._train)
        return widgets.VBox([self._controls["picture"], self._button])

    def complain(self, error: ValueError) -> None:
        super().complain(error)
        self._button.disabled = True

    def show(self, view: View) -> None:
        self._button.disabled = False
        super().show(view)

    def _train(self, _button: widgets.Button) -> None:
        self._button.disabled, self._button.description = True, "training ..."
        try:
            self.show(trained(**self.values()))
        except ValueError as error:
            self.complain(error)
        finally:
            self._button.description = "Train with it"


own_schedule = partial(explore, see, explorer=OwnSchedule, executed=trained, presets=PRESETS)
