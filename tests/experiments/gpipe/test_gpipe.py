"""What an accelerator holds, and how fast Figure 3's bars are, by hand (GPipe, sections 3.2 to 4.1)."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from experiments.gpipe import consistency, memory, speed
from experiments.gpipe.memory import GB, peaks, plan_of
from experiments.gpipe.speed import Panel, fitting, least_variance, named
from experiments.study.costs import estimated, images, recomputed_late
from pipekit.clusters import V100
from pipekit.datasets import digits
from pipekit.models import amoebanet_d
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate
from pipekit.traces.memory import Memory

# In GB: weights of which the last layer has most, activations of which the first has most.
CHAIN = Profile(
    tuple(
        LayerProfile("layer", 1, 2, output_bytes=GB, parameter_bytes=w * GB, saved_bytes=a * GB)
        for w, a in ((0, 4), (0, 2), (1, 2), (3, 2))
    ),
    rows=1,
    input_bytes=GB,
)


def test_a_network_is_held_as_the_formula_says() -> None:
    """By hand: 12 bytes for 4 of a parameter; N + L/K N/T: two inputs, and one microbatch's rest."""
    scenario = named("pipeline-2", minibatch=2, microbatches=2)
    assert plan_of(CHAIN, scenario, "memory").balance == [3, 1]
    found = peaks(memory.simulated(CHAIN, scenario, "memory"))
    assert found["parameters"].tolist() == [3, 9]
    assert found["activations"].tolist() == [2 + 8 + 1, 2 + 2 + 1]
    assert found["total"].tolist() == [14, 14]


def test_activation_bytes_are_summed_over_workers_at_their_peaks() -> None:
    frame = pd.DataFrame(
        [(0, 0, 5, 0), (0, 1, 5, 3), (0, 2, 9, 0), (1, 0, 1, 1)],
        columns=["worker", "time_s", "activations", "recompute"],
    ).assign(weights=7, gradients=7, optimizer=7)
    assert peaks(Memory(frame, "measured"))["activations"].sum() * GB == pytest.approx(9 + 2)


@pytest.mark.long
def test_trained_networks_hold_what_the_model_predicts() -> None:
    ours, found = memory.both_ways(named("pipeline-2", minibatch=8, microbatches=4), 1, 16, 32)
    assert list(found.peak_bytes) == pytest.approx(ours.peak_bytes, rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize(("layers", "filters"), [(1, 8), (4, 40)])
def test_bytes_are_those_of_the_network_profiled_by_itself(layers: int, filters: int) -> None:
    def build(device: str) -> object:
        return amoebanet_d(3 * layers, filters, 10, device=device)

    whole = estimated(build, images(2, 32), V100)  # type: ignore[arg-type]
    ours = memory.amoebanet(layers, filters, rows=2, pixels=32, classes=10)
    for expected, found in zip(whole.layers, ours.layers, strict=True):
        for name in memory.NUMBERS:
            assert getattr(found, name) == getattr(expected, name), (expected.name, name)


MEGA = 1e6
HEAVY = LayerProfile("layer", 0.003, 0.006, MEGA, MEGA, saved_bytes=200 * MEGA)
EIGHT = tuple(replace(HEAVY, flops=flops) for flops in (4, 2, 1, 1, 2, 2, 2, 2))
PROFILE = Profile(EIGHT, rows=8, input_bytes=MEGA)


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
    one, alone, four = Panel([(bar, bar.simulated()) for bar in each]).speedups
    assert one == 1
    assert alone == pytest.approx(3 / 4)
    late, early = (3 * 4 * 16 / (4 * (16 + 3) - saved) for saved in (0, 3))
    assert late < four <= early


def test_late_recomputation_has_the_theoretical_bubble_and_early_less() -> None:
    equal, plan = stages((1, 2), (1, 2)), Plan.by_hand([1, 1], recompute="always")
    early = simulate(gpipe(2, 4).take(1), equal, plan)
    late = simulate(gpipe(2, 4).take(1), recomputed_late(equal))
    assert speed.bubble_over_theory(late, 2, 4) == pytest.approx(1, abs=1e-9)
    assert 0 < speed.bubble_over_theory(early, 2, 4) < 1
    assert speed.read_off(early)["imbalance"] == pytest.approx(0)
    assert speed.read_off(early).sum() == pytest.approx(100)


def test_another_precision_leaves_the_training_alone() -> None:
    training = consistency.recipe(seed=0, epochs=1)
    exact = consistency.in_float64(training).model
    assert {p.dtype for p in exact.parameters()} == {torch.float64}
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
def test_moving_averages_count_a_whole_minibatch_once(recompute: Recompute) -> None:
    found = consistency.moving_averages(digits().batches(32)[:3], 3, 4, recompute)
    assert found["apart"] < 1e-6
    assert found["counted"] == 1
