"""Data parallelism as a special case of PipeDream (section 4)."""

import torch
from torch import nn

from pipekit import schedules
from pipekit.papers.differences import pipeline_gradients, plain_gradients, relative_difference


def gradient_difference(workers: int) -> float:
    """Return how far data parallelism's gradient is from that of one big batch, relative to it.

    A small network in float64 makes one update on the real engine, as one stage on so many workers
    (section 4).
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    inputs = torch.randn(workers, 16, 20, dtype=torch.float64)
    targets = torch.randint(10, (workers, 16))
    minibatches = list(zip(inputs, targets, strict=True))
    loss = nn.CrossEntropyLoss()
    ours = pipeline_gradients(model, minibatches, schedules.pipedream([workers], workers), loss)
    whole = inputs.flatten(0, 1), targets.flatten()
    return relative_difference(ours, plain_gradients(model, whole, loss))
