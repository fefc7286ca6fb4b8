"""What autograd makes of Checkpoint and Recompute."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from experiments.torchgpipe.autograd_nodes import one_device


@pytest.fixture
def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def test_without_order_every_recomputation_comes_before_every_other_backward(
    layers: nn.Sequential,
) -> None:
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
