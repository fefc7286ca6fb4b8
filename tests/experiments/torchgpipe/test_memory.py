"""What recomputation saves and costs, by hand; U-Nets; what autograd makes of Checkpoint and Recompute."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from experiments.torchgpipe import memory
from experiments.torchgpipe.autograd_nodes import one_device
from pipekit.clusters.papers import P40
from pipekit.models import unet
from pipekit.profiling import Profile


def test_bytes_fall_by_the_number_of_microbatches() -> None:
    model = nn.Sequential(*[nn.Linear(16, 16), nn.Tanh()] * 3)
    how: dict[str, Any] = {"loss": nn.MSELoss(), "optimizer": partial(torch.optim.SGD, lr=0.1)}
    modes = memory.each_mode(model, (torch.rand(32, 16), torch.rand(32, 16)), 4, **how)
    held = {mode: memory.kept(*each) for mode, each in modes.items()}
    kept = {mode: each.intermediate_bytes for mode, each in held.items()}
    # Three outputs of a tanh, [32, 16] floats each, and the loss of each microbatch.
    assert kept["never"] == 3 * 32 * 16 * 4 + 4 * 4
    assert kept["never"] == 4 * kept["except_last"] == 4 * kept["always"]
    assert held["always"].peak_bytes == held["except_last"].peak_bytes
    assert {each.parameter_bytes for each in held.values()} == {8 * (16 * 16 + 16)}
    how["optimizer"] = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    batch = torch.rand(32, 16), torch.rand(32, 16)
    ((pipeline, _),) = memory.each_mode(model, batch, 4, ["never"], **how).values()
    assert memory.kept(pipeline, batch).parameter_bytes == 12 * (16 * 16 + 16)


def test_a_deep_profile_is_that_of_the_deep_network() -> None:
    estimated = Profile.analytic(unet(2, 6, device="meta"), torch.empty(1, 3, 192, 192), P40)
    assert memory.profile_of(2, 6) == estimated


@pytest.mark.long
def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    found = memory.beside_simulated((1, 4), 8, 64)
    assert len(found) == 1 + 1 + 2 + 2 + 4
    assert found["simulated"].to_numpy() == pytest.approx(found["measured"].to_numpy(), rel=0.1)


@pytest.fixture
def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def test_without_order_recomputations_come_before_other_backwards(layers: nn.Sequential) -> None:
    order = one_device(layers, [(torch.rand(2, 4), {})] * 4, in_order=False).order
    assert [what for what in order if what != "B3"] == ["F'2", "F'1", "F'0", "B2", "B1", "B0"]


def test_fork_and_join_bring_back_the_papers_order(layers: nn.Sequential) -> None:
    order = one_device(layers, [(torch.rand(2, 4), {})] * 4, in_order=True).order
    assert order == ["B3", "F'2", "B2", "F'1", "B1", "F'0", "B0"]


@pytest.mark.parametrize("in_order", [False, True])
def test_gradients_are_those_of_all_microbatches(layers: nn.Sequential, in_order: bool) -> None:
    parts = torch.rand(3, 2, 4)
    plain = deepcopy(layers)
    plain(parts.flatten(0, 1)).sum().backward()
    one_device(layers, [(part, {}) for part in parts], in_order)
    for ours, theirs in zip(layers.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
