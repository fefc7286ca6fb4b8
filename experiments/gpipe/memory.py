"""What accelerators hold, by the memory model (GPipe, section 4.1) and in real trainings."""

import re
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.optim import Optimizer, RMSprop

from experiments.gpipe import amoebanet
from experiments.gpipe.speed import MICROBATCHES, MINIBATCH, PIXELS, Scenario, least_variance, named
from experiments.study.tables import printed, printed_number
from experiments.study.traces import memory_of
from pipekit import Execution, Watch, models
from pipekit.engine import Pipeline, measure_memory
from pipekit.partition.balance import best_split
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate
from pipekit.traces import Memory

GB = 1e9  # bytes: only so are 12 for each of 319.0M parameters Table 1's "3.8GB"
BUDGET = 8.0  # GB of an accelerator (section 4)
STEP = 16  # F of Table 1 are all multiples of it
STATES = 2  # of the optimizer: moving average and momentum, each as large as the parameter

Cut = Literal["computation", "memory"]
"""Where the network is cut: by GPipe's own partitioner (section 3.2), or so that the fullest
accelerator holds as little as can be, as section 4.1 expects of better ones."""


@dataclass(frozen=True)
class Column:
    """A column of Table 1, as printed; GB are total peak memory of parameters and activations."""

    scenario: Scenario  # how it was trained
    layers: int  # L, normal cells of a group
    filters: int  # F
    parameters: float  # how many
    parameter_gb: float
    activation_gb: float

    @classmethod
    def of(cls, name: str) -> "Column":
        """Return a column by name, say "pipeline-2", as the ledger of claims has it."""
        key = f"gpipe-table1-{name}"
        layers, filters = map(int, re.findall(r"\d+", printed(f"{key}-config")))
        weights, kept = (float(printed(f"{key}-{of}-memory")) for of in ("param", "activation"))
        return cls(named(name), layers, filters, printed_number(f"{key}-params"), weights, kept)

    @property
    def network(self) -> Profile:
        return amoebanet.profile(self.layers, self.filters, MINIBATCH // MICROBATCHES, PIXELS)

    @property
    def counted(self) -> int:
        return round(self.network.parameter_bytes / 4)


def plan_of(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> Plan:
    """Return which layers of a network, profiled for any rows, each accelerator has."""
    if cut == "computation":
        layers = least_variance(profile, scenario.stages)
    else:
        ranges, count = LayerRanges(profile.scaled(scenario.rows)), scenario.microbatches
        held_by = ranges.worker_bytes(*ranges.every(), 1 + STATES, count, 1, np.zeros(()))
        held_by[np.tril_indices(len(held_by))] = np.inf  # a stage has a layer at least
        layers = best_split(held_by, scenario.stages, np.maximum)
    return Plan.by_hand(layers, rows=scenario.rows, recompute=scenario.recompute)


def held(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> pd.DataFrame:
    """Return what every accelerator holds at most, simulated, in GB; no gradients of parameters."""
    plan = plan_of(profile, scenario, cut)
    trace = simulate(scenario.schedule.take(2), profile, plan, optimizer_states=STATES)
    frame = memory_of(trace).frame
    parts = pd.DataFrame(
        {
            "parameters": frame["weights"] + frame["optimizer"],
            "activations": frame["activations"] + frame["recompute"],
        }
    )
    peaks = parts.assign(total=parts.sum(axis=1)).groupby(frame["worker"]).max() / GB
    peaks.insert(0, "layers", plan.balance)
    return peaks


@cache
def fullest_gb(column: Column, more_filters: int = 0, cut: Cut = "computation") -> float:
    """Return the GB of the accelerator that holds most of a column's network, or a wider one."""
    wider = replace(column, filters=column.filters + more_filters)
    return float(held(wider.network, column.scenario, cut)["total"].max())


def rmsprop(parameters: list[nn.Parameter]) -> Optimizer:
    """Return "RMSProp-type" training's optimizer: a moving average and momentum (section 4.1)."""
    return RMSprop(parameters, lr=1e-4, momentum=0.9)


CLASSES = 10
BATCHES = 2  # the optimizer's state is there from the first update on, so that the second peaks
WIDTH = 8  # numbers that one of the equal layers takes and gives, for each row
Size = tuple[int, int, int]  # L, F and the pixels of an image's side


def profiled(scenario: Scenario, size: Size) -> Profile:
    layers, filters, pixels = size
    return amoebanet.profile(layers, filters, scenario.rows, pixels, CLASSES)


def predicted(scenario: Scenario, size: Size) -> Memory:
    """Return what :func:`trained` should hold (simulated)."""
    profile, schedule = profiled(scenario, size), scenario.schedule.take(BATCHES)
    plan = plan_of(profile, scenario)
    return memory_of(simulate(schedule, profile, plan, optimizer_states=STATES))


@cache
def trained(scenario: Scenario, size: Size) -> Memory:
    """Return what the workers held while the network was trained on random images (measured)."""
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
    rows = scenario.minibatch
    batch = torch.rand(rows, 3, pixels, pixels), torch.randint(CLASSES, (rows,))
    return memory_of(pipeline.train([batch] * BATCHES, watch=Watch(memory=True)).trace)


def activation_bytes(memory: Memory) -> float:
    """Return the sum over workers of the most that activations and recomputation held at once."""
    kept = memory.frame["activations"] + memory.frame["recompute"]
    return float(kept.groupby(memory.frame["worker"]).max().sum())


def kept_by_equal_layers(
    rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute
) -> pd.DataFrame:
    """Train equal layers; return the bytes that each worker kept for its backwards (measured)."""

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
