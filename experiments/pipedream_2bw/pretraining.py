"""Small language models trained by vanilla, 2BW and PipeDream updates (section 5.1, Figure 5).

Frames have the courses of :func:`train`, of one network and learning rate.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from experiments import study
from experiments.study.training import AfterUpdates, copied, share_of_rate
from pipekit import Updates
from pipekit.datasets import Dataset, masked, python_source
from pipekit.datasets.text import BYTES, MASK
from pipekit.engine import Pipeline, Watch
from pipekit.host.provenance import provenance
from pipekit.models import bert_large, gpt, token_loss
from pipekit.schedules import Schedule, flush, pipedream, two_bw


class Movement(AfterUpdates):
    """Follows ||W(t) - W(t-1)|| / ||W(t)|| over all stages of a pipeline on threads."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self._last = copied(model)
        self._squares: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)  # by stage

    def updated(self, stage: int, version: int, layers: nn.Module) -> None:
        now = copied(layers)
        moved = [weight - self._last[name] for name, weight in now.items()]
        self._squares[stage].append((_square(moved), _square(now.values())))
        self._last |= now

    @property
    def relative(self) -> list[float]:
        stages = (zip(*each, strict=True) for each in zip(*self._squares.values(), strict=True))
        return [math.sqrt(sum(moved) / sum(size)) for moved, size in stages]


def _square(tensors: Iterable[Tensor]) -> float:
    return float(sum(tensor.square().sum() for tensor in tensors))


VANILLA, TWO_BW, PIPEDREAM = "vanilla", "2BW", "PipeDream"

METHODS: Mapping[str, Callable[[int], Schedule]] = {
    VANILLA: lambda stages: flush(stages, stages),
    TWO_BW: lambda stages: two_bw(stages, stages),
    PIPEDREAM: pipedream,
}
"""By name, each from the number of stages to its schedule; all with the same batch,
which Flush and 2BW cut into as many microbatches as there are stages."""

POINTS = 10  # validations of a training, equally far apart; the pipeline drains before each
EVALUATION_ROWS = 64
VOCABULARY = {"gpt": BYTES, "bert": MASK + 1}


@dataclass(frozen=True, kw_only=True)
class PreTraining:
    """All that a training depends on; more stages than layers are a ValueError.

    By AdamW with a learning rate that warms up and decays linearly; what the paper does not print
    is Megatron's (Shoeybi et al., 2019, section 4).
    """

    batch_rows: int  # sequences of an update
    steps: int
    lr: float  # the greatest learning rate
    sequence: int  # tokens
    warm_up: float  # share of the steps
    network: str  # "gpt" or "bert", of bytes
    layers: int
    hidden: int
    heads: int
    dropout: float
    method: str  # a key of METHODS
    stages: int
    seed: int  # of the weights, the order of the rows, the masks and the dropout
    rows: int  # windows of text to train on, as often as the steps need
    test_rows: int

    def __post_init__(self) -> None:
        with torch.device("meta"):
            layers = len(self.build())
        if self.stages > layers:
            raise ValueError(
                f"{self.stages} stages of a {self.network} with {layers} layers: use at most "
                f"{layers} stages, or more blocks"
            )

    def optimizer(self, parameters: list[nn.Parameter]) -> AdamW:
        groups = [  # biases and norms have no weight decay
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return AdamW([group for group in groups if group["params"]], lr=self.lr)

    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return LambdaLR(optimizer, self.share_of_lr)

    @property
    def updates(self) -> dict[str, Any]:
        """How weights are updated, but for the optimizer."""
        return {"lr_scheduler": self.scheduler, "clip_norm": 1.0}

    def share_of_lr(self, step: int) -> float:
        """Return by what the greatest learning rate is multiplied after ``step`` updates."""
        return share_of_rate(step, self.steps, self.warm_up)

    def build(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        make: Callable[..., nn.Sequential] = gpt if self.network == "gpt" else bert_large
        words = {"vocabulary": VOCABULARY[self.network], "sequence": self.sequence}
        return make(self.layers, self.hidden, self.heads, dropout=self.dropout, **words)

    def text(self) -> Dataset:
        """Return what it learns from: the next byte (GPT), or the masked ones (BERT)."""
        text = python_source(self.sequence, self.rows + self.test_rows, self.test_rows)
        return masked(text) if self.network == "bert" else text


def train(case: PreTraining) -> study.Course:
    """Return a training's course: a point a step, from 0, the untrained network's.

    ``loss`` is at the weights that the method reads, ``validation`` at the :data:`POINTS` only, and
    ``moved`` how far the update moved the weights, relative to their norm.
    """
    data, model = case.text(), case.build()
    movement = Movement(model)
    pipeline = Pipeline(
        model,
        METHODS[case.method](case.stages),
        optimizer=case.optimizer,
        loss=token_loss,
        seed=case.seed,
        updates=Updates(**case.updates),
    )
    batches = study.take(data, case.batch_rows, case.steps, case.seed)
    tests = data.test_batches(EVALUATION_ROWS)
    watch, losses = Watch(trace=False, observers=[movement]), list[float | None]([None])
    validations = {0: pipeline.evaluate(tests)}
    for start, stop in pairwise(len(batches) * point // POINTS for point in range(POINTS + 1)):
        losses += pipeline.train(batches[start:stop], watch=watch).losses
        validations[stop] = pipeline.evaluate(tests)
    steps = range(len(losses))
    return study.Course.of(
        provenance("measured", case.seed, data=data.source),
        step=steps,
        loss=losses,
        validation=[validations.get(step) for step in steps],
        moved=[None, *movement.relative],
    )


def finals(frame: pd.DataFrame, method: str) -> pd.Series:
    """Return a method's last validation loss by seed, nats a byte."""
    own = frame[(frame["method"] == method) & (frame["step"] == frame["step"].max())]
    return own.set_index("seed")["validation"]


def distance(frame: pd.DataFrame, method: str) -> float:
    """Return |difference of mean final validation losses| in standard deviations of vanilla's."""
    ours, base = (finals(frame, name) for name in (method, VANILLA))
    spread = float(base.std())
    return float(abs(ours.mean() - base.mean())) / spread if spread else math.inf


def early_and_late(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the mean |2BW's training loss - vanilla's| early and late, nats a byte.

    Early is the first tenth of the steps, and late their last half.
    """
    losses = frame.dropna(subset="loss").set_index(["method", "seed", "step"])["loss"]
    gap = (losses[TWO_BW] - losses[VANILLA]).abs()
    step = gap.index.get_level_values("step")
    early, late = step <= step.max() / 10, step > step.max() / 2
    return float(gap[early].mean()), float(gap[late].mean())


def movement(frame: pd.DataFrame, recipe: PreTraining) -> tuple[float, float]:
    """Return how far an update of one method moves the weights after warm-up, relatively.

    The median, and that of the last tenth over that of the first, both over the learning rate.
    """
    moved = frame.dropna(subset="moved").set_index("step")["moved"]
    last = moved.index.max()
    start = recipe.warm_up * last
    tenth = (last - start) / 10
    moved = moved[moved.index > start]
    even = moved / [recipe.share_of_lr(int(step) - 1) for step in moved.index]  # update 1: step 0
    early, late = even[even.index <= start + tenth], even[even.index > last - tenth]
    return float(moved.median()), float(late.median() / early.median())


def matching_share(frame: pd.DataFrame) -> float:
    """Return after which share of its steps vanilla's mean validation loss is where 2BW's ends."""
    points = frame.dropna(subset="validation")
    means = points.groupby(["method", "step"])["validation"].mean()
    vanilla, goal = means[VANILLA], float(means[TWO_BW].iloc[-1])
    if goal < vanilla.min():
        return math.nan
    best = np.minimum.accumulate(vanilla.to_numpy())
    steps = vanilla.index.to_numpy()
    return float(np.interp(-goal, -best, steps) / steps[-1])
