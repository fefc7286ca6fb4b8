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
from pipekit.papers.differences import (
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

    Args:
        batch: one minibatch of images [N, 1, 8, 8].
        stages: numbers of partitions, the first of which the others are compared with.
        microbatches: T.

    Returns:
        A row for float64 and one for float32: "among partitions", the largest relative
        difference, and "from one backward, unsplit".
    """
    rows = {}
    for dtype in ("float64", "float32"):
        model = network(seed=0).to(getattr(torch, dtype))
        images = batch[0].to(getattr(torch, dtype)), batch[1]
        found = [
            pipeline_gradients(model, [images], gpipe(count, microbatches), LOSS)
            for count in stages
        ]
        rows[dtype] = {
            "among partitions": max(relative_difference(each, found[0]) for each in found),
            "from one backward, unsplit": relative_difference(
                found[0], plain_gradients(model, images, LOSS)
            ),
        }
    return pd.DataFrame(rows).T.assign(label="exact")


def replicated_differences(
    batch: Batch, stages: Sequence[int], microbatches: int, replicas: int = 2
) -> list[float]:
    """Return how far the gradients of pipelines side by side are from one backward (section 4).

    Args:
        batch: one minibatch of images [N, 1, 8, 8].
        stages: numbers of partitions.
        microbatches: T, of each pipeline.
        replicas: pipelines side by side.
    """
    model = network(seed=0)
    whole = plain_gradients(model, batch, LOSS)
    tables = (replicate(gpipe(count, microbatches), replicas) for count in stages)
    return [
        relative_difference(pipeline_gradients(model, [batch], table, LOSS), whole)
        for table in tables
    ]


def weight_differences(
    batches: Sequence[Batch], stages: Sequence[int], microbatches: int
) -> list[float]:
    """Return how far the weights of plain minibatch SGD are from those of GPipe (3.2).

    Args:
        batches: of images [N, 1, 8, 8], one step each.
        stages: numbers of partitions.
        microbatches: T, into which GPipe cuts the batches and the plain loop does not.

    Returns:
        For each number of partitions, the relative difference in the 2-norm after the last step.
    """
    model = network(seed=0)
    plain = _plain_steps(model, batches)
    found = []
    for count in stages:
        schedule = partial(gpipe, count, microbatches)
        pipeline = Pipeline(model, schedule, optimizer=OPTIMIZER, loss=LOSS)
        pipeline.train(batches, trace=False)
        found.append(relative_difference(pipeline.state_dict(), plain))
    return found


def _plain_steps(model: nn.Sequential, batches: Sequence[Batch]) -> Tensors:
    model = copy.deepcopy(model)
    optimizer = OPTIMIZER(list(model.parameters()))
    for x, y in batches:
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
    return model.state_dict()
