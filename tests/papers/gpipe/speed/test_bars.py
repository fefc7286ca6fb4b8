from dataclasses import replace

import pytest
import torch

from pipekit.papers.gpipe.scenarios import naive, named, pipeline
from pipekit.papers.gpipe.speed import bars as speed
from pipekit.papers.gpipe.speed import figure3
from pipekit.papers.gpipe.timelines.partition import least_variance
from pipekit.profiling import LayerProfile, Profile
from tests.emulation.own_time import own_time

MEGA = 1e6
LAYERS = tuple(
    LayerProfile(
        f"layer {number}",
        forward_s=0.003,
        backward_s=0.006,
        output_bytes=MEGA,
        parameter_bytes=MEGA,
        saved_bytes=200 * MEGA,
        flops=flops,
    )
    for number, flops in enumerate([4, 2, 1, 1, 2, 2, 2, 2])
)
PROFILE = Profile(LAYERS, rows=8, input_bytes=MEGA)


def test_the_networks_have_the_sizes_that_the_ledger_counts_with() -> None:
    for name, millions in (speed.AMOEBANET, 329.8), (speed.RESNET, 44.5):
        network = speed.NETWORKS[name](device="meta")
        parameters = sum(p.numel() for p in network.parameters())
        assert round(parameters / 1e6, 1) == millions


def test_a_partition_by_operations_does_not_look_at_time() -> None:
    assert least_variance(PROFILE, 2) == [4, 4]
    assert least_variance(PROFILE, 4) == [1, 3, 2, 2]
    assert least_variance(PROFILE, 4, by="time") == [2, 2, 2, 2]


def test_without_gpipe_the_largest_minibatch_is_what_fits() -> None:
    alone = speed.fitting(PROFILE, naive(1))
    assert alone.scenario.minibatch == 32  # 6.4 GB of activations; 64 need 12.8 GB
    assert alone.peak_bytes < 8 * 2**30 < 2 * alone.peak_bytes
    assert speed.fitting(PROFILE, naive(4), by="time").scenario.minibatch == 128
    pipelined = speed.fitting(PROFILE, pipeline(4))
    assert (pipelined.scenario.minibatch, pipelined.plan.microbatch_rows) == (128, 8)


def test_what_fits_nowhere_is_refused() -> None:
    huge = replace(PROFILE, layers=(replace(LAYERS[0], parameter_bytes=1e10),))
    with pytest.raises(ValueError, match="use more stages"):
        speed.fitting(huge, naive(1))


def test_a_parameter_takes_12_bytes() -> None:
    weights = replace(PROFILE, layers=(LayerProfile("layer", 1, 2, parameter_bytes=MEGA),))
    assert speed.fitting(weights, naive(1)).peak_bytes == 128 / 8 * MEGA + 12 * MEGA / 2


def test_recomputation_and_the_bubble_are_what_a_pipeline_loses() -> None:
    bars = [
        speed.fitting(PROFILE, scenario, by="time")
        for scenario in (naive(1), pipeline(1), pipeline(4))
    ]
    one, alone, four = speed.speedups(bars, [each.simulated() for each in bars])
    assert one == 1
    assert alone == pytest.approx(3 / 4)
    late = 3 * 4 * 16 / (4 * (16 + 3))
    early = 3 * 4 * 16 / (4 * (16 + 3) - 3)
    assert late < four <= early


def test_emulation_meets_simulation() -> None:
    bars = [speed.fitting(PROFILE, each) for each in (naive(2), pipeline(2, 4))]
    assert [stage.forward_s for stage in bars[1].stages] == pytest.approx([0.012, 0.012])
    simulated = speed.speedups(bars, [each.simulated() for each in bars])
    with own_time():
        emulated = speed.speedups(bars, [each.emulated(0.5) for each in bars])
    assert emulated == pytest.approx(simulated)


def test_an_update_takes_as_long_as_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"small": lambda device: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, device=device))}
    monkeypatch.setattr(speed, "NETWORKS", small)
    profile = speed.profile_of("small")
    moved = (3 * 3 * 3 * 4 + 4) * (2 * 12 + 2)
    assert profile.layers[0].update_s == pytest.approx(moved / (300e9 * 0.75))
    assert (profile.rows, profile.provenance["dtype"]) == (8, "bfloat16")


def test_a_scenario_is_known_by_the_name_that_the_paper_prints() -> None:
    for scenario in (naive(2), pipeline(4), pipeline(1)):
        assert named(scenario.name) == scenario
    assert named("pipeline-2", minibatch=12, microbatches=4).rows == 3


def test_a_panel_is_slowed_down_until_its_shortest_pass_takes_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bars = [speed.sized(PROFILE, naive(1), 8), speed.sized(PROFILE, pipeline(1, 2), 8)]
    monkeypatch.setattr(figure3, "bars", lambda *_, **__: bars)
    with own_time():
        panels = figure3.emulate_panel(speed.RESNET, shortest_pass_ms=48.0, emulations=1)
    panel = figure3.median_panel(panels)
    assert len(panels) == 1
    assert panel.slower == pytest.approx(2)
    assert panel.emulated[1] == pytest.approx(panel.simulated[1])
    _, numbers = figure3.figure(panel)
    assert numbers.loc[numbers["number"] == "paper", "speedup over naive-1"].tolist() == [1, 0.8]
