from collections.abc import Callable

import pytest
import torch
from torch import nn

from pipekit.models import convnet, image_mlp, mlp


def kinds(model: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in model]


@pytest.mark.parametrize("make", [convnet, image_mlp])
def test_the_defaults_classify_mnist_images(make: Callable[[], nn.Sequential]) -> None:
    assert make()(torch.rand(3, 1, 28, 28)).shape == (3, 10)


def test_convnet_has_14_layers_and_the_asked_width_and_classes() -> None:
    model = convnet(width=4, classes=7)
    assert len(model) == 14
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 7)
    channels = [layer.out_channels for layer in model if isinstance(layer, nn.Conv2d)]
    assert channels == [4, 8, 8, 8]


def test_convnet_has_dropout_only_when_asked() -> None:
    assert "Dropout" not in kinds(convnet())
    (dropout,) = [layer for layer in convnet(dropout=0.25) if isinstance(layer, nn.Dropout)]
    assert dropout.p == 0.25


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_mlp_has_the_asked_shapes(depth: int) -> None:
    assert mlp(8, depth)(torch.rand(2, 8)).shape == (2, 8)
    assert mlp(8, depth, inputs=5, outputs=3)(torch.rand(2, 5)).shape == (2, 3)


def test_mlp_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1 linear layer, not 0"):
        mlp(8, 0)
