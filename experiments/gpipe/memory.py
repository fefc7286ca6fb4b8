"""What accelerators hold of an AmoebaNet-D, by the memory model (GPipe, section 4.1)."""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import pandas as pd
from torch import nn
from torch.optim import Optimizer, RMSprop

from experiments.gpipe import amoebanet
from experiments.gpipe.scenarios import (
    MICROBATCHES,
    MINIBATCH,
    PIXELS,
    Scenario,
    least_variance,
    named,
)
from experiments.study.tables import printed, printed_number
from experiments.study.traces import memory_of
from pipekit.partition.balance import best_split
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.simulation import simulate

GB = 1e9
"""Bytes in the paper's gigabyte: only so are 12 bytes for each of 319.0M parameters "3.8GB"."""

BUDGET = 8.0
"""GB of an accelerator (section 4)."""

STEP = 16
"""F of Table 1 are all multiples of it."""

STATES = 2
"""Of the optimizer: moving average and momentum, each as large as the parameter."""

Cut = Literal["computation", "memory"]
"""Where the network is cut: "computation", GPipe's own partitioner, which makes the variance of the
stages' estimated FLOPs least (section 3.2); "memory", so that the fullest accelerator holds as
little as can be, which is what section 4.1 expects of better partitioners."""


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
        """The bytes of its network, for a microbatch of section 4.1's images."""
        return amoebanet.profile(self.layers, self.filters, MINIBATCH // MICROBATCHES, PIXELS)

    @property
    def counted(self) -> int:
        """The network's parameters."""
        return round(self.network.parameter_bytes / 4)


def plan_of(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> Plan:
    """Return which layers of a network, profiled for any rows, each accelerator has."""
    if cut == "computation":
        layers = least_variance(profile, scenario.stages)
    else:
        ranges = LayerRanges(profile.scaled(scenario.rows))
        each = {"versions": 1, "in_flight": scenario.microbatches, "kept": 1}
        held_by = ranges.worker_bytes(
            *ranges.every(), optimizer_states=STATES, gradients=np.zeros(()), **each
        )
        held_by[np.tril_indices(len(held_by))] = np.inf  # a stage has a layer at least
        layers = best_split(held_by, scenario.stages, np.maximum)
    return Plan.by_hand(layers, rows=scenario.rows, recompute=scenario.recompute)


def held(
    profile: Profile, scenario: Scenario, cut: Cut = "computation", *, gradients: bool = False
) -> pd.DataFrame:
    """Return what every accelerator holds at most, simulated, in GB.

    With ``gradients``, those of the parameters count among the activations; the paper's 12 bytes
    leave them out, and its activations may.
    """
    plan = plan_of(profile, scenario, cut)
    trace = simulate(scenario.schedule.take(2), profile, plan, optimizer_states=STATES)
    frame = memory_of(trace).frame
    activations = frame["activations"] + frame["recompute"] + frame["gradients"] * gradients
    parts = pd.DataFrame(
        {"parameters": frame["weights"] + frame["optimizer"], "activations": activations}
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
