"""What autograd's graph is found to reach."""

import torch
from torch import nn

from pipekit.losses.checks import nodes, weights_in_graph


def test_every_node_comes_once() -> None:
    x = torch.ones(2, requires_grad=True)
    twice = x * 2
    found = [type(node).__name__ for node in nodes([twice + twice, twice])]
    assert sorted(found) == ["AccumulateGrad", "AddBackward0", "MulBackward0"]


def test_weights_are_parameters_that_get_a_gradient() -> None:
    trained, frozen, detached = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.requires_grad_(False)
    x = torch.ones(1, 2, requires_grad=True)
    y = frozen(trained(x)) + detached(x).detach()
    assert set(weights_in_graph([y])) == set(trained.parameters())
    assert list(weights_in_graph([y.detach()])) == []
