import numpy as np
import pytest

from pipekit.clusters import named
from pipekit.explore.networks import estimated
from pipekit.explore.page.view import View
from pipekit.explore.planner import see
from pipekit.planning import parallel_pipelines, sweep
from pipekit.plots import style


@pytest.fixture(scope="module")
def view() -> View:
    return see("gpt-355M", workers=8, max_batch=64)


def test_the_plan_is_the_planners_and_leads_the_table(view: View) -> None:
    cluster = named("2bw-v100", 8)
    plan = parallel_pipelines(estimated("gpt-355M", cluster.device), cluster, max_batch=64)
    assert view.text == str(plan)
    assert view.table is not None
    winner = view.table.iloc[0]
    assert (winner["width"], winner["depth"]) == (plan.replicas[0], len(plan.stages))
    assert winner["fits"] == "yes"
    assert winner["rows a microbatch"] == plan.microbatch_rows
    assert winner["memory (GB)"] == pytest.approx(plan.memory_bytes / 1e9)


def test_the_map_has_the_best_that_fits_of_every_width_and_depth(view: View) -> None:
    cluster = named("2bw-v100", 8)
    every = sweep(estimated("gpt-355M", cluster.device), cluster, max_batch=64)
    best = every[every["fits"]].groupby(["width", "depth"])["throughput"].max()
    shown = view.plots["throughput"].data.set_index(["width", "depth"])
    assert {*shown.index} == {*every.set_index(["width", "depth"]).index}
    fitting = shown[shown["fits"]]["throughput"]
    np.testing.assert_allclose(fitting.sort_index(), best.sort_index())
    title = style.whole(view.plots["throughput"].figure.layout.title.text)
    assert f" of 8 workers and {best.max():,.4g} rows/s (simulated)" in title


def test_the_table_has_both_plain_ways_and_what_links_cost(view: View) -> None:
    assert view.table is not None
    assert (view.table["depth"] == 1).any()
    assert (view.table["width"] == 1).any()
    assert (view.table["rows/s without links"] >= view.table["rows/s"] * (1 - 1e-12)).all()


def test_what_the_cluster_cannot_be_is_said_with_its_remedy() -> None:
    with pytest.raises(ValueError, match="ask for 8 workers in place of 4"):
        see("gpt-355M", "2bw-v100", workers=4)
