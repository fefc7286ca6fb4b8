"""One microbatch through the model before training."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit.layers.python_state import is_pure
from pipekit.models import convnet
from pipekit.partition.balance import balance_by_cost
from pipekit.partition.probe import layer_costs, probe
from tests.engine.examples import different, mixed


def test_operations() -> None:
    """2 a multiplication and addition: 4 rows, 6 x 8 weights, and so on."""
    assert probe(mixed(), torch.ones(4, 6)).flops == (384, 0, 0, 0, 512, 0, 0, 192)


PURE = (
    nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Sequential(nn.GELU(), nn.LayerNorm(6))),
    nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3, padding=1), nn.MaxPool1d(2)),
    nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Softmax(dim=1)),
)


@pytest.mark.parametrize("model", PURE)
@pytest.mark.parametrize("training", [True, False])
def test_layers_that_are_not_watched_leave_what_the_watched_ones_would(
    model: nn.Sequential, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of PyTorch's own layers it is known that there is nothing to find."""
    assert is_pure(model)
    x = torch.rand(4, 6)
    known = vars(probe(model, x, training=training))
    monkeypatch.setattr("pipekit.partition.probe.is_pure", lambda model: False)
    found = vars(probe(model, x, training=training))
    assert torch.equal(known.pop("output"), found.pop("output"))
    assert known == found


class View(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 2, 3)


class Edit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).mul_(2)


def test_whose_input_is_edited() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), View(), Edit(), nn.Linear(6, 3))
    edited = probe(model, torch.ones(4, 6)).edited_inputs
    assert {1, 2, 3} <= edited
    assert not edited & {0, 4}


def test_model_input_and_generator_are_untouched() -> None:
    model, x = nn.Sequential(Edit(), *mixed()), torch.ones(4, 6)
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    probe(model, x)
    assert torch.equal(x, torch.ones(4, 6))
    assert different(dict(before), dict(model.state_dict())) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert [layer.training for layer in model] == [True, True, False, *[True] * 6]
    assert all(p.grad is None for p in model.parameters())


class Returns(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Any:
        return self.value


@pytest.mark.parametrize("value", [None, 3, "text", [1, 2]])
def test_an_output_that_is_not_tensors(value: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Returns(value), nn.Linear(6, 3))
    with pytest.raises(TypeError, match=r"layer 1 \(Returns\)"):
        probe(model, torch.ones(4, 6))


def test_an_error_names_the_layer_and_restores_the_model() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(5, 3)).eval()
    with pytest.raises(RuntimeError, match="shapes") as caught:
        probe(model, torch.ones(4, 6))
    assert "layer 1 (Linear)" in caught.value.__notes__[0]
    assert not any(module.training for module in model.modules())


def test_costs_are_operations_of_both_passes_and_of_adding_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 6, bias=False))
    assert layer_costs(model, [30, 10, 0]) == [3 * 30 + 4, 3 * 10, 12]
    model[0].requires_grad_(False)
    assert layer_costs(model, [30, 10, 0]) == [3 * 30, 3 * 10, 12]


def test_a_linear_layer_of_many_parameters_does_not_outweigh_convolutions() -> None:
    model = convnet()
    balance = balance_by_cost(layer_costs(model, probe(model, torch.ones(2, 1, 28, 28)).flops), 2)
    assert balance == [4, 10], "the second convolution before the cut, the third behind it"
