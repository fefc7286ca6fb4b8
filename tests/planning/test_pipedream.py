"""PipeDream's planner on profiles whose plan is known by hand, and one function for all planners."""

import math
import re
from typing import Any

import pytest

from pipekit import progress
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.planning import balanced, parallel_pipelines, pipedream, plan
from pipekit.profiling import LayerProfile, Profile

GB = 1e9


def cluster_of(memory: float, *levels: Level) -> Cluster:
    return Cluster("any", Device("any", memory, {}, math.inf), levels)


# Two layers compute much and pass on much, the last has most parameters: VGG16 in small.
CONVOLUTIONS = Profile(
    (
        LayerProfile("conv1", 0.1, 0.2, 400e6, 1e6),
        LayerProfile("conv2", 0.1, 0.2, 20e6, 1e6),
        LayerProfile("linear", 0.1, 0.1, 1e6, 2000e6),
    ),
    rows=32,
)


def test_the_two_costs_by_hand() -> None:
    one = Profile((LayerProfile("layer", 1.0, 3.0, parameter_bytes=4.0),))
    sync = 4 * 1 / 2 * 4.0 / 2.0  # two workers, 2 bytes/s
    assert pipedream(one, flat(2, 2.0)).predicted_s == max(4.0, sync) / 2
    assert pipedream(one, flat(2, 2.0), cost="released").predicted_s == 4.0  # one worker is as fast
    assert pipedream(one, flat(2, 4.0), cost="released").predicted_s == (4.0 + sync / 2) / 2


def test_why_says_what_is_slowest_and_what_the_plain_methods_take() -> None:
    assert pipedream(CONVOLUTIONS, flat(4, 1 * GB)).why == (
        "The slowest is the compute of layers 0-1 on 3 workers (200 ms). Data parallelism on all 4 "
        "workers would take 1502 ms, a straight pipeline 600 ms."
    )
    slow = pipedream(CONVOLUTIONS, flat(4, 0.1 * GB))
    assert "the transfer from layer 1 to 2 over link (400 ms)" in slow.why
    heavy = Profile((LayerProfile("layer", 0.5, 0.5, parameter_bytes=0.6 * GB),))
    assert (
        "the synchronisation of layer 0 over link (533.3 ms)"
        in pipedream(heavy, flat(3, 1 * GB)).why
    )
    two = Profile.uniform(2, 1.0, 1.0, parameter_bytes=1 * GB)
    tight = pipedream(two, flat(2, 1 * GB, memory=4 * GB))
    assert tight.config == "1-1"
    assert "would take 2000 ms (but does not fit), a straight pipeline 2000 ms" in tight.why


def test_equally_fast_plans_with_fewer_workers_then_fewer_stages_win() -> None:
    free = flat(6, math.inf)
    a_dear_layer = Profile.uniform(3, 1.0, 1.0)
    assert pipedream(a_dear_layer, free, replicate=False).config == "1-1-1"
    assert pipedream(a_dear_layer, free).config == "6"
    lopsided = Profile((LayerProfile("a", 5, 5), LayerProfile("b", 1, 1), LayerProfile("c", 1, 1)))
    assert pipedream(lopsided, free, replicate=False).balance == [1, 2]


def test_replicas_stay_inside_a_server() -> None:
    """Synchronising over the network would cost more than an uneven pipeline over it."""
    layer = LayerProfile("layer", 0.1, 0.2, output_bytes=1e6, parameter_bytes=200e6)
    profile = Profile((layer,) * 8)
    cluster = cluster_of(1e12, Level("NVLink", 4, 100 * GB), Level("network", 2, 1 * GB))
    plan = pipedream(profile, cluster)
    assert plan.config == "4-4"
    assert plan.predicted_s == pytest.approx(8 * 0.3 / 8)
    slow = pipedream(profile, flat(8, 1 * GB))
    assert plan.predicted_s < slow.predicted_s


def test_the_memory_that_the_error_asks_for_is_enough_and_no_less_is() -> None:
    with pytest.raises(ValueError, match="no plan fits") as caught:
        pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=1 * GB))
    (text,) = re.findall(r"at least ([\d,]+) bytes", str(caught.value))
    least = int(text.replace(",", ""))
    assert pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=least)).memory_bytes == least
    with pytest.raises(ValueError, match="no plan fits"):
        pipedream(CONVOLUTIONS, flat(4, 1 * GB, memory=least - 1))


PROFILE = Profile.uniform(4, output_bytes=1.0, parameter_bytes=1.0)
CLUSTER = flat(3, 10.0)
METHODS: dict[str, Any] = {"pipedream": {}, "parallel_pipelines": {"max_batch": 8}, "balance": {}}


def test_methods_are_planners_and_options_theirs() -> None:
    assert plan(PROFILE, CLUSTER) == pipedream(PROFILE, CLUSTER)
    assert plan(PROFILE, CLUSTER, cost="released") == pipedream(PROFILE, CLUSTER, cost="released")
    parallel = parallel_pipelines(PROFILE, CLUSTER, max_batch=9)
    assert plan(PROFILE, CLUSTER, "parallel_pipelines", max_batch=9) == parallel
    by_variance = balanced(PROFILE, CLUSTER, by="variance")
    assert plan(PROFILE, CLUSTER, "balance", by="variance") == by_variance


def test_impossible_calls() -> None:
    with pytest.raises(ValueError, match="method must be one of pipedream, parallel_pipelines"):
        plan(PROFILE, CLUSTER, "luck")
    with pytest.raises(ValueError, match="cost must be one of paper, released, not 'cheap'"):
        plan(PROFILE, CLUSTER, cost="cheap")
    with pytest.raises(ValueError, match="balance has no option 'cost', only stages, by"):
        plan(PROFILE, CLUSTER, "balance", cost="paper")
    with pytest.raises(ValueError, match="parallel_pipelines needs the option 'max_batch'"):
        plan(PROFILE, CLUSTER, "parallel_pipelines")
    for stages in (1.5, True):
        with pytest.raises(ValueError, match="stages must be a whole number of at least 1, not"):
            plan(PROFILE, CLUSTER, "balance", stages=stages)
    with pytest.raises(ValueError, match="predictors must be a whole number of at least 0"):
        plan(PROFILE, CLUSTER, "interleaved", predictors="two")
    for states in (-1, None):
        with pytest.raises(ValueError, match="optimizer_states must be 0 or a positive number"):
            plan(PROFILE, CLUSTER, optimizer_states=states)
    with pytest.raises(ValueError, match="pipedream plans for one microbatch size"):
        plan({1: PROFILE}, CLUSTER)


@pytest.mark.parametrize("method", METHODS)
def test_a_bar_changes_no_plan_and_shows_only_when_it_takes_long(
    method: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plan(PROFILE, CLUSTER, method, **METHODS[method])
    assert plan(PROFILE, CLUSTER, method, progress=True, **METHODS[method]) == plain
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    assert plan(PROFILE, CLUSTER, method, progress=True, **METHODS[method]) == plain
    assert ("planning" in capfd.readouterr().err) == (method != "balance")
