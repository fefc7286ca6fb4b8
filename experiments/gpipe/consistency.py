"""Small networks in several precisions (GPipe, 3.2 and 4.3), and with batch norm (3.2)."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.optim import SGD

from experiments.study.training import Recipe, relative_difference, trained_weights
from pipekit import Execution
from pipekit.datasets import Batch, digits
from pipekit.layers.batch_norm import DeferredBatchNorm
from pipekit.plans import Recompute
from pipekit.schedules import gpipe

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


def moving_averages(
    batches: Sequence[Batch], stages: int, microbatches: int, recompute: Recompute
) -> dict[str, float]:
    """Return how far moving averages are from those of unsplit minibatches, each counted once.

    "apart" is the largest relative difference of a layer behind the first convolution from ordinary
    batch norm in the unsplit network; "counted" is how often a minibatch counted.
    """
    convolution, *others = network(seed=0)
    how = {"optimizer": partial(SGD, lr=0.0), "loss": nn.CrossEntropyLoss()}
    how |= {"execution": Execution(recompute=recompute)}
    model = nn.Sequential(convolution, DeferredBatchNorm(8), *others)
    state = trained_weights(model, gpipe(stages, microbatches), batches, **how)
    unsplit = nn.BatchNorm2d(8)
    with torch.no_grad():
        for x, _ in batches:
            unsplit(convolution(x))
    expected = unsplit.state_dict()
    apart = max(
        relative_difference({name: state[f"1.{name}"]}, {name: expected[name]})
        for name in ("running_mean", "running_var")
    )
    return {"apart": apart, "counted": float(state["1.num_batches_tracked"]) / len(batches)}
