"""U-Nets: deep profiles, the search, the structure, and bytes of real training."""

import pytest
import torch
from torch import nn

from experiments.torchgpipe import unet_structure, unets
from experiments.torchgpipe.settings import Benchmark
from pipekit.clusters.papers import P40
from pipekit.models import unet
from pipekit.profiling import Profile


@pytest.mark.parametrize("convolutions", [2, 3, 5])
def test_a_deep_profile_is_that_of_the_deep_network(convolutions: int) -> None:
    estimated = Profile.analytic(
        unet(convolutions, 6, device="meta"), torch.empty(1, 3, 192, 192), P40
    )
    assert unets.profile_of(convolutions, 6) == estimated


def test_the_largest_network_fits_and_the_next_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 GiB a convolution, on a device of 22 GiB.
    monkeypatch.setattr(unets, "profile_of", lambda b, c: Profile.uniform(b))
    monkeypatch.setattr(unets, "peak_bytes", lambda profile, plan, m: [len(profile) * 2**30, 2**30])
    assert unets.most_convolutions(Benchmark("by hand", "unet-1-8", 1, 1, (1,), "never")) == 22
    assert unets.most_convolutions(Benchmark("by hand", "unet-40-8", 1, 1, (1,), "never")) == 22


@pytest.mark.parametrize(("convolutions", "channels"), [(1, 4), (3, 7)])
def test_our_unet_is_symmetric(convolutions: int, channels: int) -> None:
    assert unet_structure.is_symmetric(convolutions, channels)


def test_another_unet_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(convolutions: int, channels: int, device: str) -> nn.Sequential:
        return unet(convolutions, channels + 2, device=device)

    monkeypatch.setattr(unet_structure, "unet", wider)
    assert not unet_structure.is_symmetric(1, 4)


def test_gpt2_has_the_published_parameters() -> None:
    # GPT-2 small, as published: 124,439,808.
    assert unets.gpt2_parameters(12, 768, 50_257, 1024) == 124_439_808


def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    found = unets.beside_simulated((1, 4), 8, 64)
    assert len(found) == 1 + 1 + 2 + 2 + 4
    assert found["simulated"].to_numpy() == pytest.approx(found["measured"].to_numpy(), rel=0.1)
