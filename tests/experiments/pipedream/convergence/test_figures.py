"""Findings of Figures 10 to 12 from fabricated trainings."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.pipedream.cause_names import NOMINAL
from experiments.pipedream.convergence import figures, time_to_accuracy
from experiments.pipedream.convergence.figures import TimeToAccuracy
from experiments.pipedream.convergence.statistical_efficiency import (
    NaivePipelining,
    StatisticalEfficiency,
    VerticalSync,
    beside_usual,
    excursions,
)
from experiments.pipedream.convergence.trainings import (
    ASP,
    ASP_LATER,
    BSP,
    METHODS,
    NAIVE,
    SGD,
    STASHING,
    VERTICAL_SYNC,
)
from experiments.study.figures import accuracies
from pipekit.plots import save

SEEDS = 5


def runs(name: str, *accuracies: float, lr: float = 0.01, loss: float = 1.0) -> pd.DataFrame:
    """Return five trainings that end with slightly different losses and accuracies."""
    rows = [
        {"method": name, "lr": lr, "depth": 4, "width": 32, "seed": seed, "epoch": epoch}
        | {"accuracy": accuracy + seed / 100, "loss": loss + seed / 100}
        for seed in range(SEEDS)
        for epoch, accuracy in enumerate(accuracies)
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def course() -> pd.DataFrame:
    """Return methods that need 1 epoch to 80 %, but BSP 2, ASP 3 and ASP at delay 7 4."""
    ends = dict.fromkeys(METHODS, (10, 80, 90, 90, 90))
    ends |= {name: (10, 60, 80, 90, 90) for name in METHODS if name.startswith("BSP")}
    ends |= {ASP: (10, 40, 60, 80, 90), ASP_LATER: (10, 30, 50, 70, 80)}
    return pd.concat([runs(name, *values) for name, values in ends.items()], ignore_index=True)


def test_epochs_are_compared_seed_by_seed(course: pd.DataFrame) -> None:
    found = StatisticalEfficiency(course, 80.0)
    assert found.epochs[[SGD, BSP]].round(2).tolist() == [1.0, 2.0]
    assert found.seeds_slower_than_bsp(ASP) == SEEDS
    asp, between = found.findings()
    assert (asp.value, between.value) == (True, True)
    worse = course.copy()
    worse.loc[(worse["method"] == ASP) & (worse["seed"] == 2), "accuracy"] = 90.0
    assert StatisticalEfficiency(worse, 80.0).findings()[0].value is False
    late = pd.concat([course[course["method"] != STASHING], runs(STASHING, 10, 20, 30, 40, 50)])
    assert StatisticalEfficiency(late, 80.0).findings()[1].value is False
    assert list(found.figures()) == ["epochs_staleness", "epochs_asp", "epochs_workers"]
    assert found.of([BSP, SGD])["method"].unique().tolist() == [BSP, SGD]


def test_vertical_sync_is_compared_in_weights_loss_and_accuracy(course: pd.DataFrame) -> None:
    found = StatisticalEfficiency(course, 80.0)
    equals, negligible = found.vertical_sync_findings(VerticalSync(0.1, True))
    assert equals.value == [0.1, 0]
    assert negligible.value == 0
    other = course.copy()
    other.loc[other["method"] == VERTICAL_SYNC, "loss"] += 1
    changed = StatisticalEfficiency(other, 80.0).vertical_sync_findings(VerticalSync(0.1, True))
    assert changed[0].value[1] > 10


def test_naive_is_judged_where_the_others_still_learn(course: pd.DataFrame) -> None:
    high = [
        runs(STASHING, 10, 60, 70, lr=0.03, loss=1.0),
        runs(NAIVE, 10, 20, 30, lr=0.03, loss=2.0),
        runs(BSP, 10, 60, 80, lr=0.03),
        *(runs(name, 10, 10, 10, lr=0.1) for name in (STASHING, NAIVE, BSP)),
        *(runs(name, 10, 50, 60).assign(depth=8) for name in (STASHING, NAIVE, BSP)),
    ]
    both = beside_usual(course, pd.concat(high))
    assert both[both["lr"] == 0.01]["epoch"].max() == 2
    found = NaivePipelining(both, 80.0)
    assert found.lr == 0.03
    critical, lower = found.findings(deeper=8, other_lrs="0.03 0.1")
    assert critical.value == pytest.approx([1.02, 2.02])
    assert lower.value == pytest.approx([30.02, 80.02])
    assert "worse in 5 of 5 seeds" in critical.note
    assert "CHOSEN AFTER LOOKING" in critical.note
    assert "ends at 30 %, stashing at 70 %" in found.figure().layout.title.text
    assert len(excursions([0.03], 3, 2, 1, 8, 8)) == 15


def test_naive_is_not_judged_where_the_others_learn_at_no_rate() -> None:
    course = [runs(name, 10, 11, 12) for name in (STASHING, NAIVE, BSP)]
    deep = [each.assign(depth=8) for each in course]
    found = NaivePipelining(pd.concat(course + deep), 80.0)
    assert "ends at 12 %" in found.figure().layout.title.text
    for each in found.findings(deeper=8, other_lrs=""):
        assert each.shown_only == "BSP and stashing reach 50 % at no rate in 2 epochs"


def test_times_are_epochs_times_hours(
    course: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hours_of(arm: time_to_accuracy.Arm) -> float:
        return float(arm.setting.workers) if arm.method.startswith("BSP") else 2.0

    monkeypatch.setattr(time_to_accuracy, "epoch_hours", hours_of)
    monkeypatch.setattr(figures, "over_bsp_otherwise", lambda row: {NOMINAL: float(row.workers)})
    times = TimeToAccuracy(course, 80.0, epochs=4)
    assert times.product_finding().value is True
    ratios = times.ratios
    assert ratios["10a"].epochs == pytest.approx(2, abs=0.01)
    assert (ratios["10a"].seconds, ratios["10b"].time) == (4, 1)
    found = times.eight_machine_findings()
    assert [each.claim[10:16] for each in found] == ["fig10a", "fig11a", "fig11b"]
    assert [each.value[1] for each in found] == [4, 4, 4]
    assert found[0].value[0] == found[1].value[0] > 2  # standard deviations of the epochs
    sooner_bsp = course[course["method"] == "PipeDream 7-1"].assign(method=BSP)
    others = pd.concat([course[course["method"] != BSP], sooner_bsp])
    alike = TimeToAccuracy(others, 80.0, epochs=4).eight_machine_findings()
    assert [each.causes[0].value for each in alike] == [[0, 4]] * 3, "as if 4 workers needed none"
    assert [each.causes[1].value for each in alike] == [[0, 8]] * 3, "and other seconds as well"
    order, sooner = times.figure12_findings()
    assert order.value == [1, times.mid_ratios[BSP].time, times.mid_ratios[ASP].time]
    assert sooner.value == times.mid_ratios[ASP].time
    assert sooner.causes[0].value == times.mid_ratios[ASP_LATER].time
    hours = times.table.set_index(["figure", "curve"])["hours an epoch"]
    on_a = [74 * hours["10a", name] for name in ("PipeDream 7-1", "BSP, 8 workers")]
    assert on_a == [148, 592]
    assert [each.value for each in times.hours_findings()] == [148, 148]  # of 220 and of 100
    assert "paper 2.99x" in times.figure("10a")[0].layout.title.text
    assert times.figure("12")[0].layout.xaxis.title.text == "simulated hours of vgg16 on ImageNet"


def test_bands_can_be_saved(course: pd.DataFrame, tmp_path: Path) -> None:
    frame = course[course["method"].isin([SGD, BSP])]
    figure = accuracies(frame, "epoch", "method", 50.0, "A")
    shown = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert shown == [SGD, BSP, "target 50 %"]
    assert "target 50 %" in save(figure, tmp_path / "bands", frame)["svg"].read_text()
