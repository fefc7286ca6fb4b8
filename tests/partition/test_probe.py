"""One microbatch through the model before training: what it tells, and what it refuses or warns of."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pipekit as pk
from pipekit import schedules
from pipekit.layers.python_state import is_pure
from pipekit.models import convnet
from pipekit.partition.balance import balance_by_cost
from pipekit.partition.probe import layer_costs, probe
from tests.engine.examples import by_equations, data, different, mixed, pipeline


def test_operations() -> None:
    """2 a multiplication and addition: 4 rows, 6 x 8 weights, and so on."""
    assert probe(mixed(), torch.ones(4, 6)).flops == (384, 0, 0, 0, 512, 0, 0, 192)
    # 12 rows of 3 steps, by the matrices of four gates: 6 x 5 weights and 5 x 5.
    assert probe(nn.Sequential(nn.LSTM(6, 5)), torch.ones(3, 4, 6)).flops == (2 * 12 * 4 * 55,)


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


def test_an_operator_that_is_given_functions() -> None:
    model = Called(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    with pytest.raises(ValueError, match=r"layer 0 \(Called\) calls .*torch.cond.*torch.where"):
        probe(nn.Sequential(model), X)


def test_costs_are_operations_of_both_passes_and_of_adding_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 6, bias=False))
    assert layer_costs(model, [30, 10, 0]) == [3 * 30 + 4, 3 * 10, 12]
    model[0].requires_grad_(False)
    assert layer_costs(model, [30, 10, 0]) == [3 * 30, 3 * 10, 12]


def test_a_linear_layer_of_many_parameters_does_not_outweigh_convolutions() -> None:
    model = convnet()
    balance = balance_by_cost(layer_costs(model, probe(model, torch.ones(2, 1, 28, 28)).flops), 2)
    assert balance == [4, 10], "the second convolution before the cut, the third behind it"


# --- a copy of the model that still computes with the original's tensors


class Through(nn.Module):
    """Calls its layer by a function that it keeps."""

    def __init__(self, layer: nn.Module, by_lambda: bool = True) -> None:
        super().__init__()
        self.layer = layer
        self.function: Callable[[Tensor], Tensor] = lambda x: layer(x)
        if not by_lambda:
            self.function = layer.forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x).tanh()


def layers(first: nn.Module) -> nn.Sequential:
    return nn.Sequential(first, nn.Linear(6, 3))


def by_lambda() -> nn.Sequential:
    return layers(Through(nn.Linear(6, 6)))


def by_replaced_forward() -> nn.Sequential:
    model = layers(nn.Linear(6, 6))
    forward = model[0].forward
    model[0].forward = lambda x: forward(x) * 2
    return model


def by_hook() -> nn.Sequential:
    other, tanh = nn.Linear(6, 6), nn.Tanh()
    tanh.register_forward_hook(lambda module, args, output: output + other(output))
    return layers(nn.Sequential(other, tanh))


def by_buffers() -> nn.Sequential:
    return layers(Through(nn.BatchNorm1d(6, affine=False)))


@pytest.mark.parametrize(
    ("make", "tensor", "transport"),
    [
        (by_lambda, "reads the weight '0.layer.weight'", "distributed"),
        (by_replaced_forward, "reads the weight '0.weight'", "threads"),
        (by_hook, "reads the weight '0.0.weight'", "threads"),
        (by_buffers, "edits the buffer '0.layer.num_batches_tracked'", "threads"),
    ],
)
def test_what_leads_to_the_original(
    make: Callable[[], nn.Sequential], tensor: str, transport: str
) -> None:
    model = make()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    pipe = pipeline(model, "flush", [1, 1], transport=transport)
    with pytest.raises(ValueError, match=rf"copy of the model.*{tensor}.*self\.<name>"):
        pipe.train(data(1))
    assert different(pipe.state_dict(), before) == []
    assert different(model.state_dict(), before) == []


def test_evaluation_is_refused_as_well() -> None:
    with pytest.raises(ValueError, match="reads the weight"):
        pipeline(by_hook(), "flush", [1, 1]).evaluate(data(1))


def test_bound_methods_are_copied_and_frozen_weights_are_equal() -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        frozen = Through(nn.Linear(6, 6).requires_grad_(False))
        return layers(nn.Sequential(Through(nn.Linear(6, 6), by_lambda=False), frozen))

    truth = by_equations(model(), data(2), "flush", [1, 1])
    pipe = pipeline(model(), "flush", [1, 1])
    assert pipe.train(data(2)).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1]) == []


# --- networks that mix the rows of a batch

X = torch.linspace(-1, 1, 8 * 5 * 6).view(8, 5, 6)


class Called(nn.Module):
    """Makes a layer of a function, with what the function needs."""

    def __init__(self, function: Callable[..., Tensor], *needed: nn.Module) -> None:
        super().__init__()
        self.function, self.needed = function, nn.ModuleList(needed)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(*self.needed, x)


def first(layer: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = layer(x)[0]
    return output


def to_two_experts(x: Tensor) -> Tensor:
    """Of all rows, no more than half go to an expert."""
    chosen = (x.mean((1, 2)) > 0).nonzero()[: len(x) // 2, 0]
    return x.index_add(0, chosen, x[chosen])


MIXING: dict[str, Callable[[], nn.Module]] = {
    "time first": lambda: Called(first, nn.LSTM(6, 6)),
    "attention, time first": lambda: nn.TransformerEncoderLayer(6, 2, 8),
    "softmax over rows": lambda: nn.Softmax(dim=0),
    "mean over rows": lambda: Called(lambda x: x - x.mean(0)),
    "the last row": lambda: Called(lambda x: x + x[-1:]),
    "experts with room for half": lambda: Called(to_two_experts),
    "batch norm without averages": lambda: nn.BatchNorm1d(5, track_running_stats=False),
}
INDEPENDENT: dict[str, Callable[[], nn.Module]] = {
    "time second": lambda: Called(first, nn.LSTM(6, 6, batch_first=True)),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    "batch norm": lambda: nn.BatchNorm1d(5),
    "random numbers": lambda: Called(lambda x: x + torch.rand_like(x)),
    "16 bits": lambda: Called(lambda x: (x.bfloat16() @ torch.ones(6, 6).bfloat16()).float()),
}


def train(layer: nn.Module, recorded: bool, microbatches: int) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(6, 6), layer)
    pk.Pipeline(
        pk.stages(model, X) if recorded else model,  # type: ignore[arg-type]
        schedules.flush(2, microbatches),
        optimizer=partial(torch.optim.SGD, lr=0.0),
        loss=lambda output, target: output.square().mean(),
    ).train(DataLoader(TensorDataset(X, X), 8))


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_are_mixed(name: str) -> None:
    torch.manual_seed(0)
    recorded = name == "time first"
    expected = r"tensor 0 of the output changes by.*batch_first=False.*one microbatch a batch"
    with pytest.warns(UserWarning, match=expected):
        train(MIXING[name](), recorded, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(MIXING[name](), recorded, 1)


@pytest.mark.parametrize("make", INDEPENDENT.values(), ids=INDEPENDENT)
def test_rows_that_are_independent_or_tell_nothing(make: Callable[[], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(make(), False, 4)


def test_pairs_of_rows_are_of_all_rows() -> None:
    with pytest.warns(UserWarning, match=r"has rows of \[4\] in place of \[2\]"):
        train(Called(lambda x: x[:, 0] @ x[:, 0].T), False, 4)


def test_rows_that_a_pipelined_module_mixes() -> None:
    layers = nn.Sequential(nn.Linear(6, 6), MIXING["mean over rows"]())
    with pytest.warns(UserWarning, match="not independent of one another"):
        pk.PipelinedModule(layers, [1, 1], chunks=2)(X)
