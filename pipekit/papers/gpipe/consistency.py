"""Section 4.3.1 at small scale: the same accuracy whatever the number of partitions."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import SGD
from tqdm import tqdm

from pipekit.datasets import Batch, digits
from pipekit.engine import Pipeline
from pipekit.papers.differences import relative_difference
from pipekit.papers.training import Recipe, Training, train_pipeline, train_plain
from pipekit.schedules import gpipe

PLAIN = "plain loop, unsplit minibatches"
BATCH_ROWS = 64
_OPTIMIZER = partial(SGD, lr=0.05, momentum=0.9)


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
    """Return the training that all runs share: 1,437 images of digits, 360 to test on.

    Args:
        seed: of the weights and of the order of the images.
        epochs: passes over the images.
    """
    return Recipe(network(seed), digits(), _OPTIMIZER, BATCH_ROWS, epochs, seed)


class BFloat16(nn.Module):
    """A layer that computes in bfloat16 where autocast knows how, and gives bfloat16.

    Its weights, and their gradients, stay float32 (mixed precision, GPipe 4.3.2).
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y: Tensor = self.layer(x)
        return y.to(torch.bfloat16)


class Float32(nn.Module):
    """Gives float32, for the loss."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the same numbers in float32."""
        return x.float()


def in_bfloat16(model: nn.Sequential) -> nn.Sequential:
    """Return a model whose layers compute in and pass on bfloat16; the logits are float32."""
    return nn.Sequential(*map(BFloat16, model), Float32())


def train_all(
    seeds: Sequence[int],
    fresh: Sequence[int],
    stages: Sequence[int],
    microbatches: int,
    epochs: int,
) -> tuple[pd.DataFrame, float, float]:
    """Run the study of 4.3.1, measured.

    The paper's baseline is several trainings of an ordinary program; GPipe's trainings are others,
    with other seeds.  Here each of these is also held against an ordinary loop with its own seed.

    Args:
        seeds: of the baseline.
        fresh: of GPipe's trainings.
        stages: numbers of partitions.
        microbatches: T.
        epochs: of each training.

    Returns:
        A row for each training: ``what``, ``partitions`` (0: no engine), ``seed``, final
        ``accuracy`` (%) and ``loss`` (mean of the last epoch).  Then the largest relative
        difference of the final weights from a plain loop with the same seed: over the same
        microbatches, and over unsplit minibatches.
    """
    rows, same, unsplit = [], 0.0, 0.0
    bar = tqdm(total=len(seeds) + len(fresh) * (3 + len(stages)), desc="training", unit="run")
    with bar:
        for seed in seeds:
            rows.append(_row(PLAIN, 0, train_plain(recipe(seed, epochs))))
            bar.update()
        for seed in fresh:
            whole = recipe(seed, epochs)
            split_loop, plain = train_plain(whole, microbatches), train_plain(whole)
            bar.update(2)
            for count in stages:
                run = train_pipeline(whole, "GPipe", gpipe, count, microbatches)
                rows.append(_row("GPipe", count, run))
                same = max(same, relative_difference(run.weights[-1], split_loop.weights[-1]))
                unsplit = max(unsplit, relative_difference(run.weights[-1], plain.weights[-1]))
                bar.update()
            half = replace(whole, model=in_bfloat16(whole.model))
            run = train_pipeline(half, "GPipe, bfloat16", gpipe, 4, microbatches)
            rows.append(_row("GPipe, bfloat16", 4, run))
            bar.update()
    return pd.DataFrame(rows), same, unsplit


def in_float64(training: Recipe) -> Recipe:
    """Return the same training with a billion times less rounding."""
    data = replace(
        training.data,
        train_inputs=training.data.train_inputs.double(),
        test_inputs=training.data.test_inputs.double(),
    )
    return replace(training, model=copy.deepcopy(training.model).double(), data=data)


def without_kinks(training: Recipe) -> Recipe:
    """Return the same training with smooth layers, where no rounding can tip a choice.

    ReLUs become hyperbolic tangents, maxima of pools averages.
    """
    layers = [
        nn.Tanh()
        if isinstance(layer, nn.ReLU)
        else nn.AvgPool2d(2)
        if isinstance(layer, nn.MaxPool2d)
        else layer
        for layer in training.model
    ]
    return replace(training, model=nn.Sequential(*layers))


def moved_by_cutting(training: Recipe, microbatches: int) -> float:
    """Return how far cutting the minibatches of a plain loop moves its final weights.

    Args:
        training: what is trained.
        microbatches: T of the one loop; the other has unsplit minibatches.

    Returns:
        The relative difference in the 2-norm.
    """
    cut, whole = train_plain(training, microbatches), train_plain(training)
    return relative_difference(cut.weights[-1], whole.weights[-1])


def deviations(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how far GPipe's mean accuracy is from the baseline's, in its standard deviations.

    Args:
        frame: what :func:`train_all` returned.

    Returns:
        For each number of partitions: ``mean`` (%) and ``deviations``.
    """
    base = frame.loc[frame["what"] == PLAIN, "accuracy"]
    runs = frame[frame["what"] == "GPipe"].groupby("partitions")["accuracy"].mean()
    apart = (runs - base.mean()).abs() / base.std()
    return pd.DataFrame({"mean": runs, "deviations": apart})


def bfloat16_deviation(frame: pd.DataFrame) -> float:
    """Return the largest |loss in bfloat16 - in float32| of one seed, in standard deviations.

    These are the baseline's losses', over its seeds.

    Args:
        frame: what :func:`train_all` returned.
    """
    base = frame.loc[frame["what"] == PLAIN, "loss"]
    four = frame[frame["partitions"] == 4].pivot(index="seed", columns="what", values="loss")
    return float((four["GPipe, bfloat16"] - four["GPipe"]).abs().max() / base.std())


def weight_differences(
    model: nn.Sequential, batches: Sequence[Batch], stages: Sequence[int], microbatches: int
) -> list[float]:
    """Return how far the weights of plain minibatch SGD are from those of GPipe (3.2).

    Args:
        model: with its initial weights.
        batches: one step each.
        stages: numbers of partitions.
        microbatches: T, into which GPipe cuts the batches and the plain loop does not.

    Returns:
        For each number of partitions, the relative difference in the 2-norm after the last step.
    """
    loss = nn.CrossEntropyLoss()
    found = []
    for count in stages:
        schedule = partial(gpipe, count, microbatches)
        pipeline = Pipeline(model, schedule, optimizer=_OPTIMIZER, loss=loss)
        pipeline.train(batches, trace=False)
        found.append(dict(pipeline.state_dict()))
    plain = _steps(model, batches, loss)
    return [relative_difference(weights, plain) for weights in found]


def _steps(model: nn.Sequential, batches: Sequence[Batch], loss: nn.Module) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    optimizer = _OPTIMIZER(list(model.parameters()))
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


def _row(what: str, partitions: int, training: Training) -> dict[str, object]:
    return {
        "what": what,
        "partitions": partitions,
        "seed": training.recipe.seed,
        "accuracy": 100 * training.accuracies[-1],
        "loss": training.last_epoch_loss,
        "label": "measured",
    }
