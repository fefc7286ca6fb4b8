"""Stages of about equal cost, against every way to cut the layers, and plans of them."""

import math
from statistics import pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit import simulate
from pipekit.clusters import Cluster, Device, Level, flat
from pipekit.planning import balance, balanced
from pipekit.planning.balance import By
from pipekit.plans import Recompute
from pipekit.profiling import LayerProfile, Profile, SkipProfile
from pipekit.schedules import gpipe
from tests.planning.enumeration import splits, sums

costs_of_layers = st.lists(
    st.integers(0, 30).map(float) | st.floats(0.001, 1e3), min_size=1, max_size=10
)


@given(costs_of_layers, st.integers(1, 5))
def test_variance_is_the_least_that_there_is(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    ours = balance(costs, stages, "variance")
    least = min(pvariance(sums(costs, split)) for split in splits(len(costs), stages))
    assert len(ours) == stages
    assert pvariance(sums(costs, ours)) == pytest.approx(least, rel=1e-9, abs=1e-9)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 1.0]), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_blocks_differ_by_no_more_than_the_costliest_layer(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    ours = balance(costs, stages, "block")
    assert (len(ours), sum(ours)) == (stages, len(costs))
    assert min(ours) >= 1
    blocks = sums(costs, ours)
    assert max(blocks) - min(blocks) <= max(costs) * (1 + 1e-9)


def test_a_long_chain_of_blocks_ends() -> None:
    costs = [(7919 * i % 1009) / 1009 for i in range(200)]
    blocks = sums(costs, balance(costs, 32, "block"))
    assert max(blocks) - min(blocks) <= max(costs) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("costs", "stages", "by", "says"),
    [
        ([1.0, 2.0], 3, "block", "use at most 2 stages"),
        ([1.0, 2.0], 0, "variance", "ask for at least 1"),
        ([1.0, -2.0], 1, "max", "0 or positive"),
        ([1.0, float("nan")], 1, "block", "0 or positive"),
        ([1.0, 2.0], 1, "luck", "by must be one of variance, block, max"),
    ],
)
def test_impossible_input(costs: list[float], stages: int, by: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        balance(costs, stages, by)  # type: ignore[arg-type]


TIMES = [5.0, 2.0, 2.0, 2.0, 6.0, 4.0]
LAYERS = tuple(
    LayerProfile(str(i), t / 2, t / 2, 3.0, 40.0 - 6 * i, 7.0, i % 2 == 0, 1.0)
    for i, t in enumerate(TIMES)
)
PROFILE = Profile(LAYERS, input_bytes=2.0)
SKIPS = (SkipProfile("a", 0, 5, 11.0), SkipProfile("b", 1, 3, 13.0, saved=False))
SKIPPING = Profile(LAYERS, 1, 2.0, {}, SKIPS)


@pytest.mark.parametrize("by", ["max", "variance", "block"])
def test_time_or_size_is_balanced(by: By) -> None:
    free = flat(3, math.inf)
    assert balanced(PROFILE, free, by=by).balance == balance(TIMES, 3, by)
    sizes = [(2 + 2) * layer.parameter_bytes + 1.0 + 7.0 for layer in LAYERS]
    plan = balanced(PROFILE, free, by=by, of="size", optimizer_states=2)
    assert plan.balance == balance(sizes, 3, by)


def test_the_slowest_stage_or_transfer_sets_the_pace() -> None:
    assert balanced(PROFILE, flat(3, math.inf)).predicted_s == 9.0
    slow = balanced(PROFILE, flat(3, 0.5))
    assert slow.predicted_s == 2 * 3.0 / 0.5
    assert "The slowest is the transfer from stage 0 (1.2e+04 ms)" in slow.why
    servers = Cluster(
        "servers", Device("any", math.inf, {}, 1.0), (Level("in", 2, 1e9), Level("out", 2, 0.5))
    )
    assert balanced(PROFILE, servers, stages=2).predicted_s < 12.0
    assert balanced(PROFILE, servers, stages=3).predicted_s == 12.0


def test_skips_count_wherever_they_are_under_way() -> None:
    """Stages of layers 0-2, 3 and 4, and 5, between which a and b, and then a, cross."""
    slow = balanced(SKIPPING, flat(3, 0.5), of="time")
    assert slow.balance == balanced(PROFILE, flat(3, 0.5)).balance == [3, 2, 1]
    assert slow.predicted_s == 2 * (3.0 + 11.0 + 13.0) / 0.5


@pytest.mark.parametrize("profile", [PROFILE, SKIPPING], ids=["chain", "skips"])
@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
def test_memory_is_what_gpipe_takes_in_simulation(
    recompute: Recompute, microbatches: int, profile: Profile
) -> None:
    plan = balanced(
        profile,
        flat(3, math.inf),
        microbatches=microbatches,
        recompute=recompute,
        optimizer_states=1,
    )
    trace = simulate(gpipe(3, microbatches).take(2), profile, plan, optimizer_states=1)
    assert trace.memory is not None
    assert [stage.memory_bytes for stage in plan.stages] == list(trace.memory.peak_bytes)


def test_recomputation_takes_another_forward() -> None:
    plain = balanced(PROFILE, flat(3, math.inf), microbatches=4)
    again = balanced(PROFILE, flat(3, math.inf), microbatches=4, recompute="always")
    assert again.predicted_s == plain.predicted_s * 1.5
    assert again.memory_bytes < plain.memory_bytes


@pytest.mark.parametrize(
    ("options", "workers", "says"),
    [
        ({"stages": 4}, 3, "use at most 3 stages"),
        ({"stages": 0}, 3, "ask for at least 1"),
        ({"of": "hope"}, 3, "of must be one of time, size, not 'hope'"),
        ({"by": "hope"}, 3, "by must be"),
        ({"recompute": "hope"}, 3, "recompute must be"),
        ({}, 9, "use at most 6 stages"),  # more than layers
    ],
)
def test_impossible_plans(options: dict[str, object], workers: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        balanced(PROFILE, flat(workers, 1.0), **options)  # type: ignore[arg-type]


def test_the_memory_that_the_error_asks_for_is_enough() -> None:
    with pytest.raises(ValueError, match="give each at least") as caught:
        balanced(PROFILE, flat(3, 1.0, memory=10.0))
    least = int(str(caught.value).partition("at least ")[2].split()[0].replace(",", ""))
    assert balanced(PROFILE, flat(3, 1.0, memory=least)).memory_bytes == least
