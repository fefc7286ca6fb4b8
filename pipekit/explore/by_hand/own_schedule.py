"""A schedule of one's own, as text: checked, drawn, simulated, and trained with."""

import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import ipywidgets as widgets
import pandas as pd
import torch
from torch import nn

from pipekit import plots
from pipekit.clusters import flat
from pipekit.datasets import Batch, Dataset, digits
from pipekit.engine import Pipeline, Run
from pipekit.explore.by_hand.marks import faults, marked
from pipekit.explore.page.explorer import Explorer, explore
from pipekit.explore.page.view import Plot, Timeline, View
from pipekit.models import mlp
from pipekit.planning import plan
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.profiling.measured import profile
from pipekit.schedules import (
    Schedule,
    check,
    flush,
    gpipe,
    interleaved,
    parse,
    pipedream,
    two_bw,
    zb_h1,
)
from pipekit.simulation import simulate
from pipekit.traces import Trace
from pipekit.units import listed

WIDTH, DEPTH = 512, 8
"""Of the network: a perceptron of so many linear layers."""
ROWS = 64
"""Of a microbatch."""
LEAST_BATCHES = 30
"""The schedule is run again and again until it has trained on so many."""
OPTIMIZER = partial(torch.optim.Adam, lr=0.001)
PICTURE = str(flush(3, 4, 2))
_TEXT = "white-space: pre; overflow-x: auto; line-height: 1.4;"
PRESETS = {
    schedule.name: {"picture": str(schedule)}
    for schedule in (
        gpipe(3, 4),
        flush(3, 4, 2),
        pipedream(3, 6),
        two_bw(3, 3, 3),
        zb_h1(3, 4),
        interleaved(4, 4, workers=2),
    )
}


def see(picture: str = PICTURE) -> View:
    """Return a picture's schedule, drawn in time slots and simulated as the network's training.

    Args:
        picture: as :func:`pipekit.schedules.parse` reads it.

    Raises:
        ScheduleError: it cannot be read, or not be executed; the message names the tasks.
        ValueError: it has more stages than the network has layers.
    """
    schedule = parse(picture)
    report = check(schedule)
    drawn = Trace.from_schedule(schedule)
    simulated = simulate(schedule, *_split(schedule))
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
    """Return what :func:`see` does, and beside it a real training by the engine.

    Raises:
        ScheduleError: as :func:`see`, or nothing goes backward.
        ValueError: likewise.
    """
    return with_training(see(picture), parse(picture))


def with_training(view: View, schedule: Schedule) -> View:
    """Return a view of a schedule with the run and the losses of a real training by it.

    A perceptron learns scikit-learn's digits by Adam, a thread a worker.

    Raises:
        ScheduleError: nothing goes backward.
        ValueError: it has more stages than the network has layers.
    """
    run, losses = _train(schedule)
    data = pd.DataFrame({"batch": range(1, len(losses) + 1), "loss": losses, "run": schedule.title})
    figure = plots.curves(
        data,
        x="batch",
        y="loss",
        color="run",
        title=f"Trained with it: the loss goes from {losses[0]:.2f} to {losses[-1]:.2f}",
        label="measured",
        y_title="loss (nats)",
    )
    executed = Timeline(run.trace, title=f"{schedule.title}, as executed")
    return View(view.text, [*view.timelines, executed], {"loss": Plot(figure, data)})


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
        try:
            view = self._see(**self.values())
            self.show(with_training(view, parse(self.values()["picture"])))
        except ValueError as error:
            self.complain(error)
        finally:
            self._button.description = "Train with it"


def controls() -> Mapping[str, widgets.ValueWidget]:
    """Return the control of :func:`see`."""
    area = widgets.Textarea(rows=8, layout={"width": "auto"}, continuous_update=True)
    area.add_class("pipekit-picture")
    return {"picture": area}


def own_schedule(interactive: bool, results_dir: str, **start: Any) -> None:
    """Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""
    explore(
        see,
        controls,
        interactive,
        results_dir,
        explorer=OwnSchedule,
        still=trained,
        presets=PRESETS,
        waits_for="the network's layers are timed on this machine",
        **start,
    )


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *mlp(WIDTH, DEPTH, inputs=8 * 8, outputs=10))


def _train(schedule: Schedule) -> tuple[Run, list[float]]:
    """Run a schedule until there were enough batches; return its last run, and all losses."""
    torch.manual_seed(0)
    _, planned = _split(schedule)
    pipeline = Pipeline(
        _network(),
        schedule,
        balance=planned.balance,  # a plan has a worker a stage, a picture what it draws
        optimizer=OPTIMIZER,
        loss=torch.nn.CrossEntropyLoss(),
    )
    losses: list[float] = []
    while len(losses) < LEAST_BATCHES:
        run = pipeline.train(_batches(schedule, len(losses)))
        losses += run.losses
    return run, losses


def _batches(schedule: Schedule, seed: int) -> list[Batch]:
    """Return a batch for each of the schedule's, of ``ROWS`` rows a microbatch."""
    rows = [ROWS * len(batch) for batch in schedule.batches]
    data = _data()
    chosen = torch.randint(
        len(data.train_inputs), (sum(rows),), generator=torch.Generator().manual_seed(seed)
    ).split(rows)
    return [(data.train_inputs[each], data.train_targets[each]) for each in chosen]


def _split(schedule: Schedule) -> tuple[Profile, Plan]:
    """Return the network's costs here, and stages of about equal time."""
    balance = plan(_costs(), flat(schedule.stages, math.inf), "balance").balance
    replicas = [len(workers) for workers in schedule.stage_workers]
    return _costs(), Plan.by_hand(balance, rows=ROWS, replicas=replicas)


@cache
def _costs() -> Profile:
    """Measure what a microbatch costs a worker that has a core of its own."""
    data = _data()
    return profile(
        _network(),
        data.train_inputs[:ROWS],
        loss=torch.nn.CrossEntropyLoss(),
        target=data.train_targets[:ROWS],
        optimizer=OPTIMIZER,
        tolerance=math.inf,  # a rough prediction will do, and a busy machine is no news here
    )


@cache
def _data() -> Dataset:
    return digits()
