"""The same gradients and weights whatever the number of partitions (GPipe, sections 3.2 and 4)."""

import copy
from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.optim import SGD

from pipekit.datasets import Batch
from pipekit.engine import Pipeline
from pipekit.papers.findings import Finding
from pipekit.papers.trainings.differences import (
    Tensors,
    pipeline_gradients,
    plain_gradients,
    relative_difference,
)
from pipekit.schedules import gpipe, replicate

OPTIMIZER = partial(SGD, lr=0.05, momentum=0.9)
LOSS = nn.CrossEntropyLoss()


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


def gradient_differences(batch: Batch, stages: Sequence[int], microbatches: int) -> pd.DataFrame:
    """Return how far GPipe's gradients are from one another and from one backward (exact).

    A row for float64 and one for float32: "among partitions", the largest relative difference from
    the first number of stages, and "from one backward, unsplit".  Images are [N, 1, 8, 8].
    """
    rows = {}
    for dtype in ("float64", "float32"):
        model = network(seed=0).to(getattr(torch, dtype))
        images = batch[0].to(getattr(torch, dtype)), batch[1]
        tables = [gpipe(count, microbatches).take(1) for count in stages]
        found = [pipeline_gradients(model, [images], table, LOSS) for table in tables]
        plain = plain_gradients(model, images, LOSS)
        rows[dtype] = {
            "among partitions": max(relative_difference(each, found[0]) for each in found),
            "from one backward, unsplit": relative_difference(found[0], plain),
        }
    return pd.DataFrame(rows).T.assign(label="exact")


def replicated_differences(
    batch: Batch, stages: Sequence[int], microbatches: int, replicas: int = 2
) -> list[float]:
    """Return how far the gradients of pipelines side by side are from one backward (section 4).

    Each of the ``replicas`` cuts its part of the minibatch into ``microbatches``.
    """
    model = network(seed=0)
    whole = plain_gradients(model, batch, LOSS)
    tables = [replicate(gpipe(count, microbatches), replicas) for count in stages]
    found = (pipeline_gradients(model, [batch], table, LOSS) for table in tables)
    return [relative_difference(each, whole) for each in found]


def weight_differences(
    batches: Sequence[Batch], stages: Sequence[int], microbatches: int
) -> list[float]:
    """Return how far the weights of plain minibatch SGD are from those of GPipe (3.2).

    For each number of partitions, the relative difference in the 2-norm after a step a batch; the
    plain loop does not cut the batches.
    """
    model = network(seed=0)
    plain = copy.deepcopy(model)
    optimizer = OPTIMIZER(list(plain.parameters()))
    for x, y in batches:
        optimizer.zero_grad()
        LOSS(plain(x), y).backward()
        optimizer.step()
    found = (trained_weights(model, batches, count, microbatches) for count in stages)
    return [relative_difference(weights, plain.state_dict()) for weights in found]


def trained_weights(
    model: nn.Sequential, batches: Sequence[Batch], stages: int, microbatches: int
) -> Tensors:
    """Return the weights and buffers after GPipe has trained by SGD, a step a batch."""
    schedule = gpipe(stages, microbatches)
    pipeline = Pipeline(model, schedule, optimizer=OPTIMIZER, loss=LOSS)
    pipeline.train(batches, trace=False)
    return pipeline.state_dict()


def findings(gradients: pd.DataFrame, batches: Sequence[Batch], microbatches: int) -> list[Finding]:
    """Return what the abstract and sections 3.2 and 4 claim of gradients and updates.

    ``gradients`` is what :func:`gradient_differences` returned for K = 1, 2, 4, 8.
    """
    apart = gradients["from one backward, unsplit"]
    rounding = f"K = 1, 2, 4, 8, T = {microbatches}; from one backward over the unsplit minibatch "
    rounding += f"{apart['float64']:.1e} and {apart['float32']:.1e}, the rounding of sums"
    steps = weight_differences(batches, [1, 2, 4, 8], microbatches)
    same = "yes" if len(set(steps)) == 1 else "no"
    momentum = f"SGD with momentum 0.9, K = 1, 2, 4, 8; the same for every K: {same}"
    sides = max(replicated_differences(batches[0], (1, 2, 4), microbatches))
    replicas = "2 replicas of 1, 2 and 4 partitions against one process and one backward"
    among = gradients["among partitions"].tolist()
    return [
        Finding.exact("gpipe-abstract-consistent-gradients", among, rounding),
        Finding.exact("gpipe-sync-semantics", max(steps), momentum),
        Finding.exact("gpipe-sec4-combine-dp", sides, replicas),
    ]
