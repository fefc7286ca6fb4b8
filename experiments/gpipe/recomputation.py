"""What recomputation costs on one accelerator, measured: Naive-1 beside Pipeline-1 (GPipe, 4.2)."""

from functools import partial

import torch
from torch import nn

from experiments import study
from experiments.gpipe.bars import Scenario
from pipekit import Execution, Pipeline
from pipekit.models import resnet101


def timed_activities(
    ways: list[Scenario], balance: list[int], rows: int, pixels: int, pairs: int, seed: int
) -> list[dict[str, dict[str, float]]]:
    """Return the CPU seconds of each activity of each way, after one turn to warm up; in turns."""
    torch.manual_seed(seed)
    batch = torch.randn(rows, 3, pixels, pixels), torch.randint(1000, (rows,))
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    pipelines = {
        way.name: (
            Pipeline(
                resnet101(),
                way.schedule,
                balance=balance,
                execution=Execution(recompute=way.recompute),
                optimizer=optimizer,
                loss=nn.CrossEntropyLoss(),
            ),
            batch,
        )
        for way in ways
    }
    return study.own_activities(pipelines, 1 + pairs)[1:]
