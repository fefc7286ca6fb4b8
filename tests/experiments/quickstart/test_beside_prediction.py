"""Any layers, trained beside what was simulated."""

import pytest
import torch
from torch import nn

from experiments.quickstart import beside_prediction
from experiments.quickstart.beside_prediction import Method
from pipekit import Plan, profile, schedules, stages
from pipekit.clusters import flat


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        for block in self.blocks:
            y = y + block(y).tanh()
        return y


# Layers of microseconds do not add up to the whole model's time, of which a profile warns.
pytestmark = pytest.mark.filterwarnings("ignore:the layers' times add up")


def test_each_method_has_its_run_its_prediction_and_weights_that_go_back() -> None:
    torch.manual_seed(0)
    model, x = Branches(), torch.rand(8, 6)
    layers = stages(model, x)
    compared = beside_prediction.train(
        layers,
        {
            "Flush": Method(4, schedules.flush(2, 4)),
            "PipeDream": Method(1, schedules.pipedream(2)),
        },
        [(x, x)] * 3,
        plan=Plan.by_hand([2, len(layers) - 2]),
        profile=profile(layers, x[:2], repeats=1),
        cluster=flat(2, 1e9),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
        optimizer_states=0,
    )
    table = beside_prediction.table(compared).set_index("method")
    assert list(table.index) == ["Flush", "PipeDream"]
    assert (table["last loss (measured)"] < table["first loss (measured)"]).all()
    assert table["MB (simulated)"].tolist() == pytest.approx(table["MB (measured)"], rel=0.2)
    assert compared["Flush"].simulated.label == "simulated"
    model.load_state_dict(compared["Flush"].weights)


def test_profiled_layers_have_the_names_of_their_modules() -> None:
    x = torch.rand(4, 6)
    layers = profile(stages(Branches(), x), x, repeats=1).layers
    assert [layer.name for layer in layers][1:3] == ["1 blocks.0", "2 blocks.1"]
