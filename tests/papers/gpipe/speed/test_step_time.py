from functools import partial

import pytest
import torch
from torch import nn

from pipekit.papers.gpipe.scenarios import naive, pipeline
from pipekit.papers.gpipe.speed import figure4, measured, step_time
from pipekit.papers.gpipe.speed.bars import sized
from pipekit.papers.gpipe.speed.figure3 import Panel
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate

LAYER = partial(LayerProfile, "layer")
PROFILE = Profile(
    tuple(LayerProfile("layer", f, b, flops=flops) for f, b, flops in [(1, 2, 1), (2, 3, 3)])
)


def test_late_recomputation_has_the_theoretical_bubble_and_early_less() -> None:
    plan = Plan.by_hand([1, 1], recompute="always")
    equal = Profile((LAYER(1, 2), LAYER(1, 2)))
    early = simulate(gpipe(2, 4).take(1), equal, plan)
    late = simulate(gpipe(2, 4).take(1), step_time.late_recomputation(equal))
    assert step_time.bubble_over_theory(late, 2, 4) == pytest.approx(1, abs=1e-9)
    assert 0 < step_time.bubble_over_theory(early, 2, 4) < 1


def test_what_others_wait_for_a_slow_stage_between_the_phases_is_bubble() -> None:
    trace = simulate(gpipe(2, 4).take(1), Profile((LAYER(1, 2), LAYER(2, 4))))
    equal = simulate(gpipe(2, 4).take(1), Profile((LAYER(1, 2), LAYER(1, 2))))
    assert step_time.bubble_over_theory(equal, 2, 4) == pytest.approx(1)
    assert step_time.bubble_over_theory(trace, 2, 4) > 1


def test_whether_recomputation_is_early_is_seen() -> None:
    trace = simulate(gpipe(2, 4).take(1), PROFILE, Plan.by_hand([1, 1], recompute="always"))
    assert step_time.recomputes_early(trace)
    frame, gradient = trace.frame, trace.frame.query("op == 'BACKWARD' and worker == 1")
    again = (frame["op"] == "RECOMPUTE") & (frame["worker"] == 0)
    frame.loc[again, "start_s"] += gradient["end_s"].iloc[0]
    assert not step_time.recomputes_early(trace)


@pytest.mark.parametrize("seconds", [((2, 2), (1, 1)), ((1, 1), (2, 2))])
def test_imbalance_is_read_off_as_the_waits_within_forwards_and_within_backwards(
    seconds: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    trace = simulate(gpipe(2, 4).take(1), Profile(tuple(LAYER(*each) for each in seconds)))
    assert trace.makespan_s == 18  # on each of two workers; 24 s of them are computation
    shares = step_time.read_off(trace)
    # The faster stage waits 1 s for three microbatches in one of its phases: in the other it has
    # no next one to wait for.
    assert shares["imbalance"] == pytest.approx(100 * 3 / 36)
    assert shares["bubble"] == pytest.approx(100 * 9 / 36)
    assert shares["computation"] == pytest.approx(100 * 24 / 36)


def test_equal_stages_have_no_imbalance_and_all_time_is_told() -> None:
    plan = Plan.by_hand([1, 1], recompute="always")
    shares = step_time.read_off(
        simulate(gpipe(2, 4).take(1), Profile((LAYER(1, 2), LAYER(1, 2))), plan)
    )
    assert shares["imbalance"] == pytest.approx(0)
    assert shares.sum() == pytest.approx(100)


def test_steps_are_told_and_compared_with_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = [sized(PROFILE, each, 1) for each in (naive(1), pipeline(1, 4), pipeline(2, 4))]
    monkeypatch.setattr(figure4, "profile_of", lambda _: PROFILE)
    panel = Panel("small", bars, 1.0, [bar.simulated() for bar in bars])
    assert list(panel.steps) == [2]
    assert step_time.read_off(panel.steps[2][1]).sum() == pytest.approx(100)
    bubbles = figure4.bubbles(panel)
    assert bubbles["late, equal stages"][0] == pytest.approx(1, abs=1e-9)
    assert bubbles["early, equal stages"][0] < 1
    assert bubbles["early"][0] == bubbles["early, emulated"][0] < bubbles["late"][0]
    below, early = figure4.bubble_findings(bubbles)
    assert below.value == [bubbles["early"][0], bubbles["late"][0]]
    assert early.value is bool(bubbles["recomputes before its gradient"][0])
    assert "with equal stages at most" in below.note


def test_fused_layers_take_the_time_of_their_operations() -> None:
    fused = step_time.compute_bound(PROFILE)
    assert [layer.forward_s for layer in fused.layers] == pytest.approx([2 / 3, 2])
    assert fused.forward_s + fused.backward_s == pytest.approx(8)


def test_every_scenario_is_really_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    small = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1000))
    monkeypatch.setattr(measured, "resnet101", lambda: small)
    monkeypatch.setattr(measured, "profile_of", lambda _: PROFILE)
    scenarios = [naive(1), pipeline(2, 2)]
    run = partial(measured.trained, scenarios, rows=4, pixels=8, repeats=2, seed=0)
    before = torch.get_num_threads()
    rounds = run()
    assert [len(each) for each in rounds] == [2, 2]
    plain, pipelined = measured.fastest(rounds)
    assert plain.makespan_s == min(first.makespan_s for first, _ in rounds)
    assert torch.get_num_threads() == before
    table = measured.table(scenarios, [plain, pipelined])
    assert table["over naive-1"][1] == plain.makespan_s / pipelined.makespan_s
    assert (plain.label, plain.workers, pipelined.workers) == ("measured", 1, 2)
    assert (pipelined.frame["op"] == "RECOMPUTE").sum() == 4
    assert pipelined.breakdown().loc["all", "recompute"] > 0


def test_one_accelerator_is_timed_with_and_without_recomputation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1000))
    monkeypatch.setattr(measured, "resnet101", lambda: small)
    monkeypatch.setattr(measured, "profile_of", lambda _: PROFILE)
    seconds = measured.alone(rows=4, pixels=8, repeats=2, seed=0)
    assert list(seconds) == [*(scenario.name for scenario in measured.ALONE), "update (%)"]
    assert seconds["update (%)"].between(0, 100, inclusive="neither").all()
    update = measured.update_finding(seconds["update (%)"], 1, "small")
    assert update.repeats == tuple(seconds["update (%)"])
    throughput, overhead = measured.recomputation_findings(seconds, "small")
    assert (len(throughput.repeats), len(overhead.repeats)) == (2, 2)
