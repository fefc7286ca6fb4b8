"""U-Nets: deep profiles, the search, the structure, and bytes of real training."""

import pytest
import torch

from experiments.torchgpipe import unets
from pipekit.clusters.papers import P40
from pipekit.models import unet
from pipekit.profiling import Profile


def test_a_deep_profile_is_that_of_the_deep_network() -> None:
    estimated = Profile.analytic(unet(2, 6, device="meta"), torch.empty(1, 3, 192, 192), P40)
    assert unets.profile_of(2, 6) == estimated


@pytest.mark.long
def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    found = unets.beside_simulated((1, 4), 8, 64)
    assert len(found) == 1 + 1 + 2 + 2 + 4
    assert found["simulated"].to_numpy() == pytest.approx(found["measured"].to_numpy(), rel=0.1)
