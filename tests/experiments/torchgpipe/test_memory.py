"""What recomputation saves and costs, by hand; U-Nets: deep profiles, the search, real bytes."""

from functools import partial

import pytest
import torch
from torch import nn

from experiments.torchgpipe import memory
from experiments.torchgpipe.memory import OneStage
from pipekit.clusters.papers import P40
from pipekit.models import unet
from pipekit.profiling import Profile


def test_bytes_fall_by_the_number_of_microbatches() -> None:
    layers = [nn.Linear(16, 16), nn.Tanh()] * 3
    stage = OneStage(
        nn.Sequential(*layers),
        torch.rand(32, 16),
        torch.rand(32, 16),
        4,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    held = stage.held()
    kept = {mode: each.intermediate_bytes for mode, each in held.items()}
    # Three outputs of a tanh, [32, 16] floats each, and the loss of each microbatch.
    assert kept["never"] == 3 * 32 * 16 * 4 + 4 * 4
    assert kept["never"] == 4 * kept["except_last"] == 4 * kept["always"]
    assert held["always"].peak_bytes == held["except_last"].peak_bytes
    assert {each.bytes_per_parameter for each in held.values()} == {8}


def test_a_deep_profile_is_that_of_the_deep_network() -> None:
    estimated = Profile.analytic(unet(2, 6, device="meta"), torch.empty(1, 3, 192, 192), P40)
    assert memory.profile_of(2, 6) == estimated


@pytest.mark.long
def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    found = memory.beside_simulated((1, 4), 8, 64)
    assert len(found) == 1 + 1 + 2 + 2 + 4
    assert found["simulated"].to_numpy() == pytest.approx(found["measured"].to_numpy(), rel=0.1)
