"""U-Nets: deep profiles, the search, the structure, and bytes of real training."""

import pytest
import torch

from experiments.torchgpipe import unets
from experiments.torchgpipe.settings import Benchmark
from pipekit.clusters.papers import P40
from pipekit.models import unet
from pipekit.profiling import Profile


@pytest.mark.parametrize("convolutions", [2, 5])
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


def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    found = unets.beside_simulated((1, 4), 8, 64)
    assert len(found) == 1 + 1 + 2 + 2 + 4
    assert found["simulated"].to_numpy() == pytest.approx(found["measured"].to_numpy(), rel=0.1)
