"""A loss that reads weights which no stage trains is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipekit.losses.checks import require_loss, require_no_weights
from tests.engine.examples import by_equations, data, different, mlp, pipeline


class Scaled(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output * self.scale, target)


def with_penalty(model: nn.Sequential) -> tuple[nn.Sequential, Callable[[Tensor, Tensor], Tensor]]:
    """Return a model, and a loss with a penalty on the model's weights."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        penalty = torch.stack([weight.square().sum() for weight in model.parameters()]).sum()
        return F.mse_loss(output, target) + penalty

    return model, loss


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("transport", ["threads", "distributed"])
@pytest.mark.parametrize("kind", ["own weights", "penalty"])
def test_a_loss_with_weights_is_refused(kind: str, transport: str, recompute: str) -> None:
    """Its remedy is in the sentence, and the pipeline's weights are as they were."""
    model, penalized = with_penalty(mlp(6, 6, 3))
    loss: Any = Scaled() if kind == "own weights" else penalized
    pipe = pipeline(model, "flush", [1, 1], loss=loss, transport=transport, recompute=recompute)
    with pytest.raises(ValueError, match=r"no stage trains.*into the model.*requires_grad_\(False"):
        pipe.train(data(1))
    if recompute == "never":
        assert different(pipe.state_dict(), model.state_dict()) == []


def test_a_loss_with_frozen_weights_is_the_plain_loops() -> None:
    """As a network that compares what it makes of output and target has them."""
    eye = nn.Linear(3, 4).requires_grad_(False)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(eye(output), eye(target))

    truth = by_equations(mlp(6, 6, 3), data(2), "flush", [1, 1], loss=loss)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], loss=loss)
    assert pipe.train(data(2)).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1]) == []


def test_weights_behind_the_outputs_are_the_models() -> None:
    layer = nn.Linear(2, 2)
    output = layer(torch.ones(1, 2))
    require_no_weights(output.sum(), [output])
    with pytest.raises(ValueError, match=r"shape \[2\]"):
        require_no_weights((output + nn.Parameter(torch.ones(2))).sum(), [output])


class WithCentres(nn.Module):
    """Returns a weight as it is, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.centres


def test_a_weight_that_the_model_returns_is_trained() -> None:
    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.mse_loss(output[0] - output[1], target)

    model = nn.Sequential(*mlp(6, 6, 3), WithCentres())
    truth = by_equations(model, data(2), "flush", [1, 2], m=1, loss=loss)
    pipe = pipeline(model, "flush", [1, 2], m=1, loss=loss)
    assert pipe.train(data(2)).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1]) == []


def test_a_loss_is_one_number_that_is_trained() -> None:
    with pytest.raises(TypeError, match="one number"):
        require_loss(torch.ones(2, requires_grad=True) * 2)
    with pytest.raises(ValueError, match=r"\.item\(\)"):
        require_loss(torch.ones(1))
    with torch.no_grad():
        require_loss(torch.ones(1))
