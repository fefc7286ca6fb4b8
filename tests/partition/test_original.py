"""A copy of a model that still computes with the original's tensors is refused before training."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.engine.examples import by_equations, data, different, pipeline


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
    ("make", "tensor"),
    [
        (by_lambda, "reads the weight '0.layer.weight'"),
        (by_replaced_forward, "reads the weight '0.weight'"),
        (by_hook, "reads the weight '0.0.weight'"),
        (by_buffers, "edits the buffer '0.layer.num_batches_tracked'"),
    ],
)
@pytest.mark.parametrize("transport", ["threads", "distributed"])
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
