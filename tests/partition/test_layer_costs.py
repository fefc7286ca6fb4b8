"""What a layer costs, when nobody has profiled it."""

from torch import nn

from pipekit.partition.layer_costs import layer_costs


def test_costs_are_shares_of_parameters_and_operations() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 6, bias=False))
    assert layer_costs(model, [30, 10, 0]) == [0.25 + 0.75, 0.25, 0.75]
    assert layer_costs(nn.Sequential(nn.ReLU()), [0]) == [0.0]
