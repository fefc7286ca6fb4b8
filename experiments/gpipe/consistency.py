"""Small networks that learn to read digits, in several precisions (GPipe, 3.2 and 4.3)."""

import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD

from experiments.study.training import Recipe
from pipekit.datasets import digits

OPTIMIZER = partial(SGD, lr=0.05, momentum=0.9)
BATCH_ROWS = 64


def network(seed: int) -> nn.Sequential:
    """Return a convolutional network for images [B, 1, 8, 8], giving logits [B, 10]: 9 layers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),  # [B, 8, 8, 8]
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),  # [B, 16, 8, 8]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 16, 4, 4]
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def recipe(seed: int, epochs: int) -> Recipe:
    """Return the training that all runs share: 1,437 images of digits, 360 to test on."""
    return Recipe(network(seed), digits(), OPTIMIZER, BATCH_ROWS, epochs, seed)


class Cast(nn.Module):
    """A layer that computes in bfloat16 where autocast knows how, and gives another type.

    Its weights, and their gradients, stay float32 (mixed precision, GPipe 4.3.2).
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y: Tensor = self.layer(x)
        return y.to(self.dtype)


def in_bfloat16(training: Recipe) -> Recipe:
    """Return a training whose layers compute in and pass on bfloat16; the logits are float32."""
    layers = [Cast(layer, torch.bfloat16) for layer in training.model]
    return replace(training, model=nn.Sequential(*layers, Cast(nn.Identity(), torch.float32)))


def in_float64(training: Recipe) -> Recipe:
    """Return the same training with a billion times less rounding."""
    data, model = training.data, copy.deepcopy(training.model).double()
    inputs = data.train_inputs.double(), data.test_inputs.double()
    exact = replace(data, train_inputs=inputs[0], test_inputs=inputs[1])
    return replace(training, model=model, data=exact)


def without_kinks(training: Recipe) -> Recipe:
    """Return the same training with smooth layers, where no rounding can tip a choice."""
    smooth = {nn.ReLU: nn.Tanh(), nn.MaxPool2d: nn.AvgPool2d(2)}
    layers = (smooth.get(type(layer), layer) for layer in training.model)
    return replace(training, model=nn.Sequential(*layers))
