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

from pipekit import plots
from pipekit.datasets import digits
from pipekit.papers.drawing import with_line
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.consistency.gradients import OPTIMIZER, network
from pipekit.papers.trainings.differences import relative_difference
from pipekit.papers.trainings.training import Recipe, Training, train_pipeline, train_plain
from pipekit.progress import progress_bar
from pipekit.schedules import gpipe

Ints = Sequence[int]
PLAIN, GPIPE, BFLOAT16 = "plain loop, unsplit minibatches", "GPipe", "GPipe, bfloat16"
BATCH_ROWS = 64

LEVELS = ("baseline: mean", 0, "solid"), ("mean + 2 std", 2, "dot"), ("mean - 2 std", -2, "dot")
"""Lines of the figure."""


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


def in_bfloat16(model: nn.Sequential) -> nn.Sequential:
    """Return a model whose layers compute in and pass on bfloat16; the logits are float32."""
    layers = [Cast(layer, torch.bfloat16) for layer in model]
    return nn.Sequential(*layers, Cast(nn.Identity(), torch.float32))


@dataclass(frozen=True)
class Study:
    """All trainings of the study, measured."""

    # a row each: ``what``, ``partitions`` (0: no engine), ``seed``, final ``accuracy`` (%) and
    # ``loss`` (mean of the last epoch)
    trainings: pd.DataFrame
    # the largest relative difference of GPipe's final weights from a plain loop with the same seed
    # over the same microbatches
    from_split_loop: float = 0.0
    from_unsplit_loop: float = 0.0  # likewise, over unsplit minibatches

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


def train_all(seeds: Ints, fresh: Ints, stages: Ints, microbatches: int, epochs: int) -> Study:
    """Carry out the study of 4.3.1: ``seeds`` are the baseline's, ``fresh`` those of GPipe."""
    baseline = progress_bar(seeds, desc="baseline", unit="run")
    rows = [_row(PLAIN, 0, train_plain(recipe(seed, epochs))) for seed in baseline]
    from_split, from_unsplit = [0.0], [0.0]
    for seed in progress_bar(fresh, desc=GPIPE, unit="seed"):
        whole = recipe(seed, epochs)
        split, unsplit = train_plain(whole, microbatches), train_plain(whole)
        for count in stages:
            run = train_pipeline(whole, GPIPE, gpipe(count, microbatches))
            rows.append(_row(GPIPE, count, run))
            from_split.append(relative_difference(run.weights[-1], split.weights[-1]))
            from_unsplit.append(relative_difference(run.weights[-1], unsplit.weights[-1]))
        half = replace(whole, model=in_bfloat16(whole.model))
        rows.append(_row(BFLOAT16, 4, train_pipeline(half, BFLOAT16, gpipe(4, microbatches))))
    return Study(pd.DataFrame(rows), max(from_split), max(from_unsplit))


def in_float64(training: Recipe) -> Recipe:
    """Return the same training with a billion times less rounding."""
    data, model = training.data, copy.deepcopy(training.model).double()
    inputs = data.train_inputs.double(), data.test_inputs.double()
    exact = replace(data, train_inputs=inputs[0], test_inputs=inputs[1])
    return replace(training, model=model, data=exact)


def without_kinks(training: Recipe) -> Recipe:
    """Return the same training with smooth layers, where no rounding can tip a choice.

    ReLUs become hyperbolic tangents, maxima of pools averages.
    """
    smooth = {nn.ReLU: nn.Tanh(), nn.MaxPool2d: nn.AvgPool2d(2)}
    layers = (smooth.get(type(layer), layer) for layer in training.model)
    return replace(training, model=nn.Sequential(*layers))


def moved_by_cutting(training: Recipe, microbatches: int) -> float:
    """Return how far cutting the minibatches of a plain loop moves its final weights, relatively.

    One loop has ``microbatches`` a minibatch, the other unsplit ones.
    """
    cut, whole = train_plain(training, microbatches), train_plain(training)
    return relative_difference(cut.weights[-1], whole.weights[-1])


def cause_of_difference(seed: int, epochs: int, microbatches: int) -> str:
    """Return, measured and in words, why cut and unsplit minibatches end with other weights."""
    one = recipe(seed, epochs)
    double = moved_by_cutting(in_float64(one), microbatches)
    smooth = moved_by_cutting(without_kinks(one), microbatches)
    return (
        f"in float64 cutting moves the weights by {double:.1e}, without ReLUs and maxima by "
        f"{smooth:.1e} (seed {seed})"
    )


def figure(study: Study) -> go.Figure:
    """Draw the final accuracy of all float32 trainings over the number of partitions."""
    x, y = "partitions, K (0: no pipeline)", "final test accuracy (%)"
    shown = study.trainings[study.trainings["what"] != BFLOAT16]
    series = shown["what"].where(shown["what"] != GPIPE, "GPipe, other seeds")
    named = shown.assign(**{x: shown["partitions"], y: shown["accuracy"]}, series=series)
    far = study.deviations["deviations"].max()
    title = f"Any number of partitions: {far:.1f} standard deviations from the baseline"
    drawn = plots.points(named, x, y, "series", title=title, label="measured")
    base = study.baseline("accuracy")
    ends = [0, shown["partitions"].max()]
    for name, deviation, dash in LEVELS:
        with_line(drawn, ends, [base.mean() + deviation * base.std()] * 2, name, dash)
    return drawn.update_yaxes(range=None, autorange=True)


def findings(study: Study, cause: str, epochs: int, picture: str) -> list[Finding]:
    """Return what the study says of 4.3.1, and of bfloat16 without loss scaling in 4.3.2.

    ``cause`` is what :func:`cause_of_difference` returned.
    """
    seeds, fresh = len(study.baseline("loss")), len(study.four_partitions)
    split, unsplit = study.from_split_loop, study.from_unsplit_loop
    farthest = [float(study.deviations["deviations"].max()), max(split, unsplit)]
    proxy = (
        f"{seeds} seeds of the baseline, mean of {fresh} other seeds for each K; {epochs} epochs "
        f"on digits. With equal seeds {split:.1e} from a loop over the same microbatches and "
        f"{unsplit:.1e} from one over unsplit minibatches, the same for every K, it is T that "
        f"rounds otherwise; {cause}"
    )
    no_scaling = (
        f"largest over {fresh} seeds, in standard deviations of the baseline's final loss; 4 "
        "partitions, bfloat16 activations and gradients on the links"
    )
    return [
        Finding.measured("gpipe-sec431-proxy", farthest, proxy, picture),
        Finding.measured("gpipe-sec431-consistent-training", farthest[0], proxy, picture),
        Finding.measured("gpipe-sec432-no-loss-scaling", study.bfloat16_deviation, no_scaling),
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
