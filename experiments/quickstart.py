"""A small convolutional network on digits, and how far one training of it is from another."""

from functools import partial

import torch

from experiments.study import training as compared
from experiments.study.training import Recipe, Training, he_initialised
from pipekit.datasets import Dataset
from pipekit.models import convnet


def digits_recipe(
    data: Dataset, batch_rows: int, epochs: int, lr: float, momentum: float, seed: int = 0
) -> Recipe:
    """Return how a small convolutional network is trained by SGD on images of digits."""
    torch.manual_seed(seed)
    model = he_initialised(convnet())
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
        "bit-equal": compared.bit_equal(*last) and training.losses == reference.losses,
        "max |Δw|, epoch 1": compared.largest_difference(*first),
        "max |Δw|, end": compared.largest_difference(*last),
        "‖Δw‖/‖w‖, end": compared.relative_difference(*last),
        "loss": training.last_epoch_loss,
        "Δloss": training.last_epoch_loss - reference.last_epoch_loss,
        "accuracy (%)": 100 * training.accuracies[-1],
        "Δaccuracy (points)": 100 * (training.accuracies[-1] - reference.accuracies[-1]),
        "label": "measured",
    }
