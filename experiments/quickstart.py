"""A small convolutional network on digits, and how far one training of it is from another."""

from functools import partial

import torch
from torch import nn

from experiments.study.training import (
    Recipe,
    Training,
    bit_equal,
    largest_difference,
    relative_difference,
)
from pipekit.datasets import Dataset
from pipekit.models import convnet


def digits_recipe(
    data: Dataset, batch_rows: int, epochs: int, lr: float, momentum: float, seed: int = 0
) -> Recipe:
    """Return how a small convolutional network is trained by SGD on images of digits."""
    torch.manual_seed(seed)
    model = convnet()
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # He initialisation: learns from the start
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    sgd = partial(torch.optim.SGD, lr=lr, momentum=momentum)
    return Recipe(model, data, sgd, batch_rows, epochs, seed)


def difference(training: Training, reference: Training) -> dict[str, object]:
    """Return how far a training is from another, one row of a table (measured).

    Weights are compared after the first and after the last epoch: between the two, a difference in
    the last bit grows. ``loss`` is the mean of the last epoch's batches.
    """
    first, last = ((training.weights[e], reference.weights[e]) for e in (0, -1))
    return {
        "method": training.name,
        "stages": training.stages,
        "microbatches": training.microbatches,
        "seed": training.recipe.seed,
        "bit-equal": bit_equal(*last) and training.losses == reference.losses,
        "max |Δw|, epoch 1": largest_difference(*first),
        "max |Δw|, end": largest_difference(*last),
        "‖Δw‖/‖w‖, end": relative_difference(*last),
        "loss": training.last_epoch_loss,
        "Δloss": training.last_epoch_loss - reference.last_epoch_loss,
        "accuracy (%)": 100 * training.accuracies[-1],
        "Δaccuracy (points)": 100 * (training.accuracies[-1] - reference.accuracies[-1]),
        "label": "measured",
    }
