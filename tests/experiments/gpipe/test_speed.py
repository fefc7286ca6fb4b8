"""The sizes and costs of Figure 3's bars, and what is read off a step as Figure 4's caption says."""

from dataclasses import replace

import pytest

from experiments.gpipe import speed
from experiments.gpipe.speed import Panel, fitting, least_variance, named
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate

MEGA = 1e6
HEAVY = LayerProfile("layer", 0.003, 0.006, MEGA, MEGA, saved_bytes=200 * MEGA)
LAYERS = tuple(replace(HEAVY, flops=flops) for flops in (4, 2, 1, 1, 2, 2, 2, 2))
PROFILE = Profile(LAYERS, rows=8, input_bytes=MEGA)


def stages(*seconds: tuple[float, float]) -> Profile:
    return Profile(tuple(LayerProfile("layer", *each) for each in seconds))


def test_a_partition_by_operations_does_not_look_at_time() -> None:
    assert least_variance(PROFILE, 4) == [1, 3, 2, 2]
    assert least_variance(PROFILE, 4, by="time") == [2, 2, 2, 2]


def test_without_gpipe_the_largest_minibatch_is_what_fits() -> None:
    alone = fitting(PROFILE, named("naive-1"))
    assert alone.scenario.minibatch == 32  # 6.4 GB of activations; 64 need 12.8 GB
    assert alone.peak_bytes < 8 * 2**30 < 2 * alone.peak_bytes
    pipelined = fitting(PROFILE, named("pipeline-4"))
    assert (pipelined.scenario.minibatch, pipelined.plan.microbatch_rows) == (128, 8)
    huge = replace(PROFILE, layers=(replace(HEAVY, parameter_bytes=1e10),))
    with pytest.raises(ValueError, match="use more stages"):
        fitting(huge, named("naive-1"))


def test_a_parameter_takes_12_bytes() -> None:
    weights = replace(PROFILE, layers=(LayerProfile("layer", 1, 2, parameter_bytes=MEGA),))
    assert fitting(weights, named("naive-1")).peak_bytes == 128 / 8 * MEGA + 12 * MEGA / 2


def test_recomputation_and_the_bubble_are_what_a_pipeline_loses() -> None:
    names = ("naive-1", "pipeline-1", "pipeline-4")
    each = [fitting(PROFILE, named(name), by="time") for name in names]
    one, alone, four = Panel(each, [bar.simulated() for bar in each]).speedups
    assert one == 1
    assert alone == pytest.approx(3 / 4)
    late, early = (3 * 4 * 16 / (4 * (16 + 3) - saved) for saved in (0, 3))
    assert late < four <= early


def test_late_recomputation_has_the_theoretical_bubble_and_early_less() -> None:
    equal, plan = stages((1, 2), (1, 2)), Plan.by_hand([1, 1], recompute="always")
    early = simulate(gpipe(2, 4).take(1), equal, plan)
    late = simulate(gpipe(2, 4).take(1), speed.late_recomputation(equal))
    assert speed.bubble_over_theory(late, 2, 4) == pytest.approx(1, abs=1e-9)
    assert 0 < speed.bubble_over_theory(early, 2, 4) < 1
    assert speed.read_off(early)["imbalance"] == pytest.approx(0)
    assert speed.read_off(early).sum() == pytest.approx(100)
