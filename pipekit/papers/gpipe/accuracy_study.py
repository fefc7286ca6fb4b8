"""Section 4.3.1 at small scale: the same accuracy whatever the number of partitions.

The paper's baseline is several trainings of an ordinary program; GPipe's trainings are others, with
other seeds.  Here each of these is also held against an ordinary loop with its own seed.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn
from tqdm import tqdm

from pipekit import plots
from pipekit.datasets import digits
from pipekit.papers.differences import relative_difference
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.consistency import OPTIMIZER, network
from pipekit.papers.training import Recipe, Training, train_pipeline, train_plain
from pipekit.plots import style
from pipekit.schedules import gpipe

PLAIN, GPIPE, BFLOAT16 = "plain loop, unsplit minibatches", "GPipe", "GPipe, bfloat16"
BATCH_ROWS = 64


def recipe(seed: int, epochs: int) -> Recipe:
    """Return the training that all runs share: 1,437 images of digits, 360 to test on.

    Args:
        seed: of the weights and of the order of the images.
        epochs: passes over the images.
    """
    return Recipe(network(seed), digits(), OPTIMIZER, BATCH_ROWS, epochs, seed)


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


@dataclass(frozen=True)
class Study:
    """All trainings of the study, measured.

    Attributes:
        trainings: a row each: ``what``, ``partitions`` (0: no engine), ``seed``, final
            ``accuracy`` (%) and ``loss`` (mean of the last epoch).
        from_split_loop: the largest relative difference of GPipe's final weights from a plain loop
            with the same seed over the same microbatches.
        from_unsplit_loop: likewise, over unsplit minibatches.
    """

    trainings: pd.DataFrame
    from_split_loop: float = 0.0
    from_unsplit_loop: float = 0.0

    def baseline(self, column: str) -> pd.Series:
        """Return the accuracies or losses of the baseline's trainings."""
        return self.trainings.loc[self.trainings["what"] == PLAIN, column]

    @property
    def deviations(self) -> pd.DataFrame:
        """How far GPipe's mean accuracy is from the baseline's, in its standard deviations.

        For each number of partitions: ``mean`` (%) and ``deviations``.
        """
        base, frame = self.baseline("accuracy"), self.trainings
        runs = frame[frame["what"] == GPIPE].groupby("partitions")["accuracy"].mean()
        apart = (runs - base.mean()).abs() / base.std()
        return pd.DataFrame({"mean": runs, "deviations": apart})

    @property
    def four_partitions(self) -> pd.DataFrame:
        """The final losses on 4 partitions: a row a seed, a column float32 and one bfloat16."""
        four = self.trainings[self.trainings["partitions"] == 4]
        return four.pivot(index="seed", columns="what", values="loss")

    @property
    def bfloat16_deviation(self) -> float:
        """The largest |loss in bfloat16 - in float32| of one seed, in the baseline's deviations."""
        four = self.four_partitions
        return float((four[BFLOAT16] - four[GPIPE]).abs().max() / self.baseline("loss").std())


def train_all(
    seeds: Sequence[int],
    fresh: Sequence[int],
    stages: Sequence[int],
    microbatches: int,
    epochs: int,
) -> Study:
    """Carry out the study of 4.3.1.

    Args:
        seeds: of the baseline.
        fresh: of GPipe's trainings.
        stages: numbers of partitions.
        microbatches: T.
        epochs: of each training.
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
                run = train_pipeline(whole, GPIPE, gpipe, count, microbatches)
                rows.append(_row(GPIPE, count, run))
                same = max(same, relative_difference(run.weights[-1], split_loop.weights[-1]))
                unsplit = max(unsplit, relative_difference(run.weights[-1], plain.weights[-1]))
                bar.update()
            half = replace(whole, model=in_bfloat16(whole.model))
            rows.append(_row(BFLOAT16, 4, train_pipeline(half, BFLOAT16, gpipe, 4, microbatches)))
            bar.update()
    return Study(pd.DataFrame(rows), same, unsplit)


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


def cause_of_difference(seed: int, epochs: int, microbatches: int) -> str:
    """Return, measured and in words, why cut and unsplit minibatches end with other weights."""
    one = recipe(seed, epochs)
    double, smooth = (
        moved_by_cutting(training, microbatches)
        for training in (in_float64(one), without_kinks(one))
    )
    return (
        f"in float64 cutting moves the weights by {double:.1e}, without ReLUs and maxima by "
        f"{smooth:.1e} (seed {seed})"
    )


def figure(study: Study) -> go.Figure:
    """Draw the final accuracy of all float32 trainings over the number of partitions."""
    shown = study.trainings[study.trainings["what"] != BFLOAT16]
    named = shown.assign(series=shown["what"].where(shown["what"] != GPIPE, "GPipe, other seeds"))
    drawn = plots.points(
        named,
        x="partitions",
        y="accuracy",
        color="series",
        title=f"Any number of partitions: {study.deviations['deviations'].max():.1f} standard "
        "deviations from the baseline",
        label="measured",
        x_title="partitions, K (0: no pipeline)",
        y_title="final test accuracy (%)",
    )
    base = study.baseline("accuracy")
    levels = [("baseline: mean", 0, "solid"), ("mean ± 2 std", 2, "dot"), ("", -2, "dot")]
    for name, deviation, dash in levels:
        drawn.add_scatter(
            x=[0, shown["partitions"].max()],
            y=[base.mean() + deviation * base.std()] * 2,
            name=name,
            mode="lines",
            line={"color": style.GREY, "dash": dash, "width": 1.5},
            showlegend=bool(name),
        )
    drawn.update_yaxes(range=None, autorange=True)
    return drawn


def findings(study: Study, cause: str, epochs: int, picture: str) -> list[Finding]:
    """Return what the study says of 4.3.1, and of bfloat16 without loss scaling in 4.3.2.

    Args:
        study: the trainings.
        cause: what :func:`cause_of_difference` returned.
        epochs: of each training.
    """
    seeds, fresh = len(study.baseline("loss")), len(study.four_partitions)
    apart = study.from_split_loop, study.from_unsplit_loop
    return [
        Finding.measured(
            "gpipe-sec431-proxy",
            [float(study.deviations["deviations"].max()), max(apart)],
            f"{seeds} seeds of the baseline, mean of {fresh} other seeds for each K; {epochs} "
            f"epochs on digits. With equal seeds {apart[0]:.1e} from a loop over the same "
            f"microbatches and {apart[1]:.1e} from one over unsplit minibatches, the same for "
            f"every K, it is T that rounds otherwise; {cause}",
            picture,
        ),
        Finding.measured(
            "gpipe-sec432-no-loss-scaling",
            study.bfloat16_deviation,
            f"largest over {fresh} seeds, in standard deviations of the baseline's final loss; 4 "
            "partitions, bfloat16 activations and gradients on the links",
        ),
    ]


def _row(what: str, partitions: int, training: Training) -> dict[str, object]:
    return {
        "what": what,
        "partitions": partitions,
        "seed": training.recipe.seed,
        "accuracy": 100 * training.accuracies[-1],
        "loss": training.last_epoch_loss,
        "label": "measured",
    }
