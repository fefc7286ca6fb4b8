"""What autograd makes of Checkpoint and Recompute."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from experiments.torchgpipe.autograd_nodes import one_device, received, total_peak
from experiments.torchgpipe.settings import Benchmark
from pipekit import models


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


def test_graphs_that_wait_are_in_memory_together() -> None:
    layers = nn.Sequential(nn.Linear(2, 1, bias=False), *(nn.Tanh() for _ in range(5)))
    rows, m, bytes_a_float = 100, 4, 4
    peaks = [
        one_device(layers, [(torch.rand(rows, 2), {})] * m, o).peak_bytes for o in (False, True)
    ]
    inputs, weights = m * rows * 2 * bytes_a_float, 2 * bytes_a_float
    graph = 5 * rows * bytes_a_float  # what each Tanh saves; the Linear saves its input
    gradients = weights  # of the first run, to which the second one adds
    assert peaks == [weights + inputs + m * graph, weights + gradients + inputs + graph]


def test_a_stage_receives_what_it_pops_or_what_is_under_way() -> None:
    unet, x, balance = models.unet(1, 4).eval(), torch.rand(1, 3, 64, 64), [5, 6, 6, 5]
    direct, through = (received(unet, x, balance, portals) for portals in (True, False))
    assert [len(names) for _, names in direct] == [0, 0, 3, 2]
    assert [len(names) for _, names in through] == [0, 2, 5, 2]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(direct, through, strict=True))
    cell = Benchmark("by hand", "none", 2, 2, tuple(balance), "except_last")
    most, least = (
        total_peak(unet, x, cell, in_order=True, portals=portals) for portals in (False, True)
    )
    assert most > least
