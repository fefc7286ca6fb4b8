"""Speed: simulated seconds and bytes of all methods, with updates of equally many samples."""

import pandas as pd
import pytest

from experiments.staleness import comparison, explorer, figures, speed
from experiments.staleness.methods import METHODS
from experiments.staleness.proxies import PROXIES
from experiments.staleness.speed import Machines, points, update_seconds
from pipekit import Profile
from pipekit.profiling import LayerProfile
from tests.experiments.staleness.trainings_table import parabola, trainings

LAYER = LayerProfile("layer", 1.0, 2.0, parameter_bytes=4e9, saved_bytes=0.0, output_bytes=0.0)
EQUAL = Profile((LAYER,) * 4, input_bytes=0.0)
MACHINES = Machines(stages=4, rows=8, microbatches=8, recompute=False, optimizer_states=2)


@pytest.fixture(autouse=True)
def equal_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_one_row", lambda model, cluster: EQUAL)
    monkeypatch.setattr(speed, "_point", speed._point.__wrapped__)  # keeps nothing


def test_a_flush_costs_its_bubble_and_all_others_none() -> None:
    seconds = {name: MACHINES.point(name).seconds for name in METHODS}
    busy = 8 * 3.0
    for name, taken in seconds.items():
        # (n - 1) passes of a microbatch more: PipeDream-Flush, PipeDream-2BW's section 3.2
        assert taken == pytest.approx(busy + 3 * 3.0 if name == "flush" else busy), name


def test_the_worst_worker_has_its_versions_and_what_a_mitigation_keeps() -> None:
    weights = {name: MACHINES.point(name).memory_bytes / 4e9 for name in METHODS}
    rest = 1 + 2  # a gradient and Adam's two states
    assert weights["flush"] == pytest.approx(1 + rest)
    assert weights["2bw"] == weights["2bw-sync-first"] == pytest.approx(2 + rest)
    assert weights["pipedream"] == pytest.approx(4 + rest)
    assert weights["no-stashing"] == weights["paci"] == pytest.approx(1 + rest)
    assert weights["spectrain"] > weights["no-stashing"]
    assert weights["gap-aware"] > weights["pipedream"]


def test_rows_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(ValueError, match="12 samples an update cannot be cut into 8 equal"):
        Machines(stages=4, rows=12, microbatches=8).point("2bw")


ARMS = [("flush", 1), ("2bw", 2), ("pipedream", 4), ("pipedream", 8)]
TABLE = trainings(parabola({"flush": 0.0, "2bw": 0.1, "pipedream": 0.4}), ARMS)
ENDS = comparison.summary(TABLE)


def test_points_are_the_methods_measured_at_this_depth() -> None:
    shown = points(MACHINES, ENDS, "images-small", "adamw").set_index("arm")
    assert [*shown.index] == ["flush", "2bw", "pipedream, 4 stages"]
    assert shown["seconds"]["2bw"] == pytest.approx(3.0)
    assert shown["loss"]["2bw"] == pytest.approx(1.1, abs=0.1)


def machines(proxy: str, optimizer: str, stages: int) -> Machines:
    """The same four equal layers for any proxy; there are no eight."""
    if stages != MACHINES.stages:
        raise ValueError(f"four layers have no {stages} stages")
    return MACHINES


def test_time_to_a_loss_is_updates_times_seconds() -> None:
    four = TABLE[TABLE["stages"] != 8]
    seconds = update_seconds(machines, four)
    own = dict(seconds.loc["images-small", "adamw"])
    assert own == pytest.approx({("flush", 1): 33, ("2bw", 2): 24, ("pipedream", 4): 24})
    table = figures.time_to_loss(four, seconds).set_index("arm")
    assert [*table.index] == ["2bw", "pipedream, 4 stages"]
    row = table.loc["pipedream, 4 stages"]
    assert row["target"] == pytest.approx(1.4, abs=0.1), "its own end, which is the higher"
    assert row["updates"] == pytest.approx(200)
    # Straight lines from 2: the lower the end, the sooner any loss is reached.
    sooner = 200 * (2 - row["target"]) / (2 - 1.0)
    assert row["updates without delay"] == pytest.approx(sooner, rel=0.1)
    assert row["seconds"] == pytest.approx(24 * row["updates"])
    assert row["speedup"] == pytest.approx(33 * row["updates without delay"] / row["seconds"])


def test_each_proxy_stands_for_a_papers_network_on_its_cluster() -> None:
    assert {proxy.kind for proxy in PROXIES.values()} == {*speed.STANDS_FOR}
    found = speed.on_paper_cluster("images-long", "sgd", 8)
    assert (found.model, found.cluster, found.stages) == ("vgg16", "pipedream-a", 8)
    assert found.optimizer_states == 1
    assert speed.on_paper_cluster("gpt-small", "adamw").optimizer_states == 2
    assert speed.on_paper_cluster("gpt-large-200", "adamw").model == "gpt-1.3B"


def test_the_explorer_shows_what_fits_and_says_what_does_not() -> None:
    view = explorer.see(ENDS, rows=8, memory_gib=24)
    (plot,) = view.plots.values()
    assert "2bw ends" not in view.text
    assert "2bw is the fastest" in view.text
    assert "flush ends lowest" in view.text
    assert "Not within 24 GiB: pipedream, 4 stages" in view.text
    assert [*plot.data["arm"]] == ["flush", "2bw"]
    assert plot.figure.data[0].name.startswith("flush"), "as in the courses"
    assert view.table is not None
    assert [*view.table["fits"]] == ["yes", "yes", "no"]
    assert "2bw and 1 more are the fastest" in explorer.see(ENDS, rows=8, memory_gib=80).text
    assert explorer.see(ENDS, rows=8, memory_gib=4).text == "Nothing fits into 4 GiB (simulated)."
    with pytest.raises(ValueError, match="no training of gpt-small with sgd on 4 stages"):
        explorer.see(ENDS, proxy="gpt-small", optimizer="sgd")
    controls = explorer.controls(ENDS)
    assert {*controls} == {*explorer.see.__annotations__} - {"table", "return"}
    untuned = ENDS[ENDS["at"] == comparison.SYNCS].assign(proxy="gpt-medium")
    more = explorer.controls(pd.concat([ENDS, untuned]))
    assert more["proxy"]().options == controls["proxy"]().options, (
        "nothing is judged at its own rate"
    )


@pytest.mark.parametrize("point", [1, 6])
def test_a_spike_does_not_press_the_courses_together(point: int) -> None:
    name = f"validation_{point}"
    figure, _ = figures.course(TABLE.assign(**{name: TABLE[name] + 50}), "images-small", "adamw")
    low, high = figure.layout.yaxis.range
    assert low < 1.0 < 1.7 < high < 3
