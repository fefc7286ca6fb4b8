from functools import partial

import pytest
import torch
from torch import nn

from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.reproduction.gpipe import speed, step_time
from pipekit.schedules import gpipe
from pipekit.simulation import simulate

LAYER = partial(LayerProfile, "layer")
PROFILE = Profile(
    tuple(LayerProfile("layer", f, b, flops=flops) for f, b, flops in [(1, 2, 1), (2, 3, 3)])
)


def test_late_recomputation_has_the_theoretical_bubble_and_early_less() -> None:
    plan = Plan.by_hand([1, 1], recompute="always")
    early = simulate(gpipe(2, 4), PROFILE, plan)
    late = simulate(gpipe(2, 4), step_time.late_recomputation(PROFILE))
    assert step_time.bubble_over_theory(late, 2, 4) == pytest.approx(1, abs=1e-9)
    assert 0 < step_time.bubble_over_theory(early, 2, 4) < 1


def test_whether_recomputation_is_early_is_seen() -> None:
    trace = simulate(gpipe(2, 4), PROFILE, Plan.by_hand([1, 1], recompute="always"))
    assert step_time.recomputes_early(trace)
    frame, gradient = trace.frame, trace.frame.query("op == 'BACKWARD' and worker == 1")
    again = (frame["op"] == "RECOMPUTE") & (frame["worker"] == 0)
    frame.loc[again, "start_s"] += gradient["end_s"].iloc[0]
    assert not step_time.recomputes_early(trace)


def test_waiting_for_microbatches_leaves_out_what_is_between_and_behind_the_phases() -> None:
    slow_first = simulate(gpipe(2, 4), Profile((LAYER(2, 2), LAYER(1, 1))))
    assert slow_first.makespan_s == 18  # the second stage waits 1 s for each of 3 forwards
    assert step_time.waiting_for_microbatches(slow_first) == pytest.approx(100 * 3 / 36)
    slow_last = simulate(gpipe(2, 4), Profile((LAYER(1, 1), LAYER(2, 2))))
    assert step_time.waiting_for_microbatches(slow_last) == pytest.approx(100 * 3 / 36)
    plan = Plan.by_hand([1, 1], recompute="always")
    equal = simulate(gpipe(2, 4), Profile((LAYER(1, 2), LAYER(1, 2))), plan)
    assert step_time.waiting_for_microbatches(equal) == pytest.approx(0)


def test_fused_layers_take_the_time_of_their_operations() -> None:
    fused = step_time.compute_bound(PROFILE)
    assert [layer.forward_s for layer in fused.layers] == pytest.approx([2 / 3, 2])
    assert fused.forward_s + fused.backward_s == pytest.approx(8)


def test_runs_stand_under_one_another() -> None:
    trace = simulate(gpipe(2, 4), PROFILE)
    frame = step_time.breakdowns({"one": trace, "other": trace})
    assert frame.index.tolist() == ["one", "other"]
    assert frame.sum(axis=1).tolist() == pytest.approx([100, 100])


def test_every_scenario_is_really_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    small = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1000))
    monkeypatch.setattr(step_time, "resnet101", lambda: small)
    monkeypatch.setattr(step_time, "profile_of", lambda _: PROFILE)
    scenarios = [speed.naive(1), speed.pipeline(2, 2)]
    run = partial(step_time.measured, scenarios, rows=4, pixels=8, repeats=2, seed=0)
    before = torch.get_num_threads()
    plain, pipelined = run()
    assert torch.get_num_threads() == before
    assert (plain.label, plain.workers, pipelined.workers) == ("measured", 1, 2)
    assert (pipelined.frame["op"] == "RECOMPUTE").sum() == 4
    assert pipelined.breakdown().loc["all", "recompute"] > 0
