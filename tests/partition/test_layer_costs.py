"""What a layer costs, when nobody has profiled it."""

import torch
from torch import nn

from pipekit.models import convnet
from pipekit.partition.balance import balance_by_cost
from pipekit.partition.layer_costs import layer_costs
from pipekit.partition.probe import probe


def test_costs_are_operations_of_both_passes_and_of_adding_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 6, bias=False))
    assert layer_costs(model, [30, 10, 0]) == [3 * 30 + 4, 3 * 10, 12]
    model[0].requires_grad_(False)
    assert layer_costs(model, [30, 10, 0]) == [3 * 30, 3 * 10, 12]


def test_a_linear_layer_of_many_parameters_does_not_outweigh_convolutions() -> None:
    model = convnet()
    balance = balance_by_cost(layer_costs(model, probe(model, torch.ones(2, 1, 28, 28)).flops), 2)
    assert balance == [4, 10], "the second convolution before the cut, the third behind it"
