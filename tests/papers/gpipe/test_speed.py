from dataclasses import replace

import pytest
import torch

from pipekit.papers.gpipe import speed
from pipekit.profiling import LayerProfile, Profile

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


def test_the_networks_have_the_sizes_that_the_ledger_reckons_with() -> None:
    for name, millions in (speed.AMOEBANET, 329.8), (speed.RESNET, 44.5):
        network = speed.NETWORKS[name](device="meta")
        parameters = sum(p.numel() for p in network.parameters())
        assert round(parameters / 1e6, 1) == millions


def test_a_partition_by_operations_does_not_look_at_time() -> None:
    assert speed.split(PROFILE, 2) == [4, 4]
    assert speed.split(PROFILE, 4) == [1, 3, 2, 2]
    assert speed.split(PROFILE, 4, by="time") == [2, 2, 2, 2]


def test_without_gpipe_the_largest_minibatch_is_what_fits() -> None:
    naive = speed.job(PROFILE, speed.naive(1))
    assert naive.rows == 32  # 6.4 GB of activations; 64 need 12.8 GB
    assert naive.peak_bytes < 8 * 2**30 < 2 * naive.peak_bytes
    assert speed.job(PROFILE, speed.naive(4), by="time").rows == 128
    pipelined = speed.job(PROFILE, speed.pipeline(4))
    assert (pipelined.rows, pipelined.plan.microbatch_rows) == (128, 8)


def test_what_fits_nowhere_is_refused() -> None:
    huge = replace(PROFILE, layers=(replace(LAYERS[0], parameter_bytes=1e10),))
    with pytest.raises(ValueError, match="use more stages"):
        speed.job(huge, speed.naive(1))


def test_a_parameter_takes_12_bytes() -> None:
    weights = replace(PROFILE, layers=(LayerProfile("layer", 1, 2, parameter_bytes=MEGA),))
    assert speed.job(weights, speed.naive(1)).peak_bytes == 128 / 8 * MEGA + 12 * MEGA / 2


def test_recomputation_and_the_bubble_are_what_a_pipeline_loses() -> None:
    jobs = [
        speed.job(PROFILE, scenario, by="time")
        for scenario in (speed.naive(1), speed.pipeline(1), speed.pipeline(4))
    ]
    one, alone, four = speed.speedups(jobs, [each.simulated() for each in jobs])
    assert one == 1
    assert alone == pytest.approx(3 / 4)
    late = 3 * 4 * 16 / (4 * (16 + 3))
    early = 3 * 4 * 16 / (4 * (16 + 3) - 3)
    assert late < four <= early


def test_emulation_meets_simulation() -> None:
    jobs = [speed.job(PROFILE, each) for each in (speed.naive(2), speed.pipeline(2, 4))]
    assert speed.shortest_pass_s(jobs[1]) == pytest.approx(0.012)
    simulated, emulated = (
        speed.speedups(jobs, traces)[1]
        for traces in ([j.simulated() for j in jobs], [j.emulated(0.5) for j in jobs])
    )
    assert emulated == pytest.approx(simulated, rel=0.15)


def test_an_update_takes_as_long_as_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"small": lambda device: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, device=device))}
    monkeypatch.setattr(speed, "NETWORKS", small)
    profile = speed.profile_of("small")
    moved = (3 * 3 * 3 * 4 + 4) * (2 * 12 + 2)
    assert profile.layers[0].update_s == pytest.approx(moved / (300e9 * 0.75))
    assert (profile.rows, profile.provenance["dtype"]) == (8, "bfloat16")
