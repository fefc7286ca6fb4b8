"""A schedule of one's own, as text: checked, drawn, simulated, and trained with."""

from functools import partial
from typing import Annotated

import ipywidgets as widgets

from pipekit.explore.by_hand.marks import faults, marked
from pipekit.explore.page.explorer import Explorer, explore
from pipekit.explore.page.view import Timeline, View
from pipekit.schedules import check, flush, gpipe, interleaved, parse, pipedream, two_bw, zb_h1
from pipekit.simulation import simulate
from pipekit.traces import Trace
from pipekit.units import listed

PICTURE = str(flush(3, 4).take(2))
_TEXT = "white-space: pre; overflow-x: auto; line-height: 1.4;"
PRESETS = {
    schedule.name: {"picture": str(schedule)}
    for schedule in (
        gpipe(3, 4).take(1),
        flush(3, 4).take(2),
        pipedream(3).take(6),
        two_bw(3, 3).take(3),
        zb_h1(3, 4).take(1),
        interleaved(4, 4, workers=2).take(1),
    )
}


def text_area() -> widgets.Textarea:
    """Return the control of a picture."""
    area = widgets.Textarea(rows=8, layout={"width": "auto"}, continuous_update=True)
    area.add_class("pipekit-picture")
    return area


def see(picture: Annotated[str, text_area] = PICTURE) -> View:
    """Return a picture's schedule, drawn in time slots and simulated as the network's training."""
    from pipekit.explore.by_hand.training import split  # here, since torch takes seconds

    schedule = parse(picture)
    report = check(schedule)
    drawn = Trace.from_schedule(schedule)
    simulated = simulate(schedule, *split(schedule))
    return View(
        text=f"executable: no worker waits for ever; weight slots, a worker: "
        f"{listed(report.peak_versions)}; microbatches in flight: "
        f"{listed(report.peak_in_flight)} (exact)",
        timelines=[
            Timeline(drawn, title=f"{schedule.title}, as drawn"),
            Timeline(simulated, title=f"{schedule.title}, predicted for a core a worker"),
        ],
    )


def trained(picture: str = PICTURE) -> View:
    """Return :func:`see` with a real training by the engine."""
    from pipekit.explore.by_hand.training import with_training

    return with_training(see(picture), parse(picture))


class OwnSchedule(Explorer):
    """The text area, where an error is marked, and a button that trains."""

    def controls_box(self) -> widgets.Widget:
        """Return the text, the button, and the copy of the text that shows an error."""
        self._marks = widgets.HTML()
        self._button = widgets.Button(
            description="Train with it", icon="play", button_style="primary"
        )
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
        """Replace all that is shown."""
        self._button.disabled = False
        self._marks.value = ""
        super().show(view)

    def _train(self, _button: widgets.Button) -> None:
        self._button.disabled, self._button.description = True, "training ..."
        from pipekit.explore.by_hand.training import with_training

        try:
            view = self._see(**self.values())
            self.show(with_training(view, parse(self.values()["picture"])))
        except ValueError as error:
            self.complain(error)
        finally:
            self._button.description = "Train with it"


own_schedule = partial(
    explore,
    see,
    explorer=OwnSchedule,
    executed=trained,
    presets=PRESETS,
    waits_for="loading torch and timing the network's layers on this machine, once",
)
"""Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""
