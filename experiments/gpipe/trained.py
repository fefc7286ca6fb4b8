"""Networks whose bytes are counted while they train: small AmoebaNets (4.1), equal layers (3.3)."""

from functools import cache, partial

import pandas as pd
import torch
from torch import nn

from experiments.gpipe import amoebanet
from experiments.gpipe.memory import STATES, plan_of, rmsprop
from experiments.gpipe.scenarios import Scenario
from experiments.study.traces import memory_of
from pipekit import Execution, Watch, models
from pipekit.engine import Pipeline, measure_memory
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate
from pipekit.traces import Memory

CLASSES = 10
BATCHES = 2
"""The optimizer's state is there from the first update on, so that the second minibatch peaks."""

WIDTH = 8
"""Numbers that one of the equal layers takes and gives, for each row."""

Size = tuple[int, int, int]
"""L, F and the pixels of an image's side."""


def profiled(scenario: Scenario, size: Size) -> Profile:
    """Return the network's bytes, from shapes alone."""
    layers, filters, pixels = size
    return amoebanet.profile(layers, filters, scenario.rows, pixels, CLASSES)


def predicted(scenario: Scenario, size: Size) -> Memory:
    """Return what :func:`trained` should hold (simulated)."""
    profile, schedule = profiled(scenario, size), scenario.schedule.take(BATCHES)
    plan = plan_of(profile, scenario)
    return memory_of(simulate(schedule, profile, plan, optimizer_states=STATES))


@cache
def trained(scenario: Scenario, size: Size) -> Memory:
    """Return what the workers held while the network was trained on random images (measured).

    It is cut by GPipe's partitioner.
    """
    layers, filters, pixels = size
    torch.manual_seed(0)
    pipeline = Pipeline(
        models.amoebanet_d(3 * layers, filters, CLASSES),
        scenario.schedule,
        balance=plan_of(profiled(scenario, size), scenario),
        optimizer=rmsprop,
        loss=nn.CrossEntropyLoss(),
        execution=Execution(devices=["cpu"] * scenario.stages),
    )
    rows = scenario.rows * scenario.microbatches
    batch = torch.rand(rows, 3, pixels, pixels), torch.randint(CLASSES, (rows,))
    return memory_of(pipeline.train([batch] * BATCHES, watch=Watch(memory=True)).trace)


def activation_bytes(memory: Memory) -> float:
    """Return the sum over workers of the most that activations and recomputation held at once."""
    kept = memory.frame["activations"] + memory.frame["recompute"]
    return float(kept.groupby(memory.frame["worker"]).max().sum())


def kept_by_equal_layers(
    rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute
) -> pd.DataFrame:
    """Train equal layers and return what every worker kept for its backwards, in bytes (measured).

    There are N rows of a minibatch, and K equally long stages.
    """

    def layer() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    pipeline = Pipeline(
        nn.Sequential(*(layer() for _ in range(layers))),
        gpipe(stages, microbatches),
        balance=[layers // stages] * stages,
        optimizer=partial(torch.optim.SGD, lr=0.01),
        loss=lambda output, _: output.square().mean(),
        execution=Execution(recompute=recompute, devices=["cpu"] * stages),
    )
    batch = torch.rand(rows, WIDTH), torch.empty(rows, 0)  # no labels, which would be counted too
    frame = measure_memory(pipeline.train([batch], watch=Watch(memory=True))).frame
    frame = frame.assign(total=frame["activations"] + frame["recompute"])
    return frame.groupby("worker")[["activations", "total"]].max()
