"""The sizes and costs of Figure 3's bars, and what is read off a step as Figure 4's caption says."""

from dataclasses import replace

import pytest

from experiments.gpipe import step_time
from experiments.gpipe.bars import Panel, fitting, least_variance, named, sized
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate
from tests.emulation.own_time import own_time

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


def test_emulation_meets_simulation() -> None:
    each = [sized(PROFILE, named("naive-2"), 8), sized(PROFILE, named("pipeline-2", 32, 4), 8)]
    panel = Panel(each, [bar.simulated() for bar in each])
    with own_time():
        (found,) = panel.emulated(slower=2, repeats=1).found
    assert found.speedups == pytest.approx(panel.speedups)
    assert (found.label, panel.label) == ("emulated", "simulated")


def test_late_recomputation_has_the_theoretical_bubble_and_early_less() -> None:
    equal, plan = stages((1, 2), (1, 2)), Plan.by_hand([1, 1], recompute="always")
    early = simulate(gpipe(2, 4).take(1), equal, plan)
    late = simulate(gpipe(2, 4).take(1), step_time.late_recomputation(equal))
    assert step_time.bubble_over_theory(late, 2, 4) == pytest.approx(1, abs=1e-9)
    assert 0 < step_time.bubble_over_theory(early, 2, 4) < 1
    assert step_time.read_off(early)["imbalance"] == pytest.approx(0)
    assert step_time.read_off(early).sum() == pytest.approx(100)


def test_whether_recomputation_is_early_is_seen() -> None:
    plan = Plan.by_hand([1, 1], recompute="always")
    trace = simulate(gpipe(2, 4).take(1), stages((1, 2), (2, 3)), plan)
    assert step_time.recomputes_early(trace)
    frame, gradient = trace.frame, trace.frame.query("op == 'BACKWARD' and worker == 1")
    again = (frame["op"] == "RECOMPUTE") & (frame["worker"] == 0)
    frame.loc[again, "start_s"] += gradient["end_s"].iloc[0]
    assert not step_time.recomputes_early(trace)


@pytest.mark.parametrize("seconds", [((2, 2), (1, 1)), ((1, 1), (2, 2))])
def test_imbalance_is_read_off_as_the_waits_within_forwards_and_within_backwards(
    seconds: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    trace = simulate(gpipe(2, 4).take(1), stages(*seconds))
    assert trace.makespan_s == 18  # on each of two workers; 24 s of them are computation
    shares = step_time.read_off(trace)
    # The faster stage waits 1 s for three microbatches in one of its phases: in the other it has
    # no next one to wait for.
    assert shares["imbalance"] == pytest.approx(100 * 3 / 36)
    assert shares["bubble"] == pytest.approx(100 * 9 / 36)
