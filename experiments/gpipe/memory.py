"""AmoebaNets of any size (L, F), and what accelerators hold of them (GPipe, sections 3.3, 4 and 5).

A search looks at hundreds of networks, whose profiles take seconds each.  But every number of bytes
in AmoebaNet-D is a polynomial of F of degree 2 at most, as a weight has F^2 numbers, F or none; and
from the third on, a group's normal cells are equal.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.optim import Optimizer, RMSprop

from experiments.gpipe.speed import MICROBATCHES, MINIBATCH, PIXELS, Scenario, least_variance, named
from experiments.study.costs import estimated, images, with_costs
from experiments.study.tables import printed, printed_number
from experiments.study.traces import ONLY_BYTES, memory_of, on_cpus, trained_memory
from pipekit.clusters import V100
from pipekit.models import amoebanet_d
from pipekit.partition.balance import best_split
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate
from pipekit.traces import Memory

DISTINCT = 3  # normal cells of a group that may differ from those before them

NUMBERS = ["output_bytes", "parameter_bytes", "saved_bytes", "buffer_bytes", "flops"]

STEM = 3  # layers before the first normal cell: a convolution and two reduction cells


def amoebanet(layers: int, filters: int, rows: int, pixels: int, classes: int = 1000) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) in float32; a forward takes 1 s, a backward 2 s."""
    distinct = min(layers, DISTINCT)
    known = [_estimated(distinct, f, rows, pixels, classes) for f in (8, 16, 24)]
    f = filters / 8  # below, what the polynomial through 8, 16 and 24 filters makes of these
    lagrange = (f - 2) * (f - 3) / 2, (f - 1) * (3 - f), (f - 1) * (f - 2) / 2
    numbers = sum(w * one.to_frame()[NUMBERS] for w, one in zip(lagrange, known, strict=True))
    costs = dict(numbers.round().items())
    mixed = with_costs(known[0], forward_s=1.0, backward_s=2.0, **costs).layers
    period = distinct + 1  # a group, and the reduction cell or classifier behind it
    chain = [*mixed[:STEM]]
    for first in range(STEM, len(mixed), period):
        *cells, behind = mixed[first : first + period]
        chain += [*cells, *[cells[-1]] * (layers - len(cells)), behind]
    return replace(known[0], layers=tuple(chain))


@cache
def _estimated(layers: int, filters: int, rows: int, pixels: int, classes: int) -> Profile:
    build = partial(amoebanet_d, 3 * layers, filters, classes)
    return estimated(build, images(rows, pixels), V100)


GB = 1e9  # bytes: only so are 12 for each of 319.0M parameters Table 1's "3.8GB"
BUDGET = 8.0  # GB of an accelerator (section 4)
STEP = 16  # F of Table 1 are all multiples of it
STATES = 2  # of the optimizer: moving average and momentum, each as large as the parameter
BATCHES = 2  # the optimizer's state is there from the first update on, so that the second peaks

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
        return amoebanet(self.layers, self.filters, MINIBATCH // MICROBATCHES, PIXELS)

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


def simulated(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> Memory:
    """Return what accelerators hold of a network, profiled for any rows."""
    schedule, plan = scenario.schedule.take(BATCHES), plan_of(profile, scenario, cut)
    return memory_of(simulate(schedule, profile, plan, optimizer_states=STATES))


def peaks(memory: Memory) -> pd.DataFrame:
    """Return what every accelerator holds at most, in GB, without gradients of parameters."""
    frame = memory.frame
    parts = pd.DataFrame({"parameters": frame["weights"] + frame["optimizer"]})
    parts["activations"] = frame["activations"] + frame["recompute"]
    return parts.assign(total=parts.sum(axis=1)).groupby(frame["worker"]).max() / GB


@cache
def fullest_gb(column: Column, more_filters: int = 0, cut: Cut = "computation") -> float:
    """Return the GB of the accelerator that holds most of a column's network, or a wider one."""
    wider = replace(column, filters=column.filters + more_filters)
    return float(peaks(simulated(wider.network, column.scenario, cut))["total"].max())


def rmsprop(parameters: list[nn.Parameter]) -> Optimizer:
    """Return "RMSProp-type" training's optimizer: a moving average and momentum (section 4.1)."""
    return RMSprop(parameters, lr=1e-4, momentum=0.9)


CLASSES = 10
WIDTH = 8  # numbers that one of the equal layers takes and gives, for each row


def both_ways(scenario: Scenario, layers: int, filters: int, pixels: int) -> tuple[Memory, Memory]:
    """Return what workers should hold (simulated), and held in training (measured)."""
    profile = amoebanet(layers, filters, scenario.rows, pixels, CLASSES)
    torch.manual_seed(0)
    model, rows = amoebanet_d(3 * layers, filters, CLASSES), scenario.minibatch
    batch = torch.rand(rows, 3, pixels, pixels), torch.randint(CLASSES, (rows,))
    how: dict[str, Any] = {"optimizer": rmsprop, "loss": nn.CrossEntropyLoss()}
    pipeline = on_cpus(model, scenario.schedule, balance=plan_of(profile, scenario), **how)
    return simulated(profile, scenario), trained_memory(pipeline, [batch] * BATCHES)


def kept_by_equal_layers(
    rows: int, layers: int, stages: int, microbatches: int, recompute: Recompute
) -> pd.DataFrame:
    """Train equal layers; return the bytes that each worker kept for its backwards (measured)."""

    def layer() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    pipeline = on_cpus(
        nn.Sequential(*(layer() for _ in range(layers))),
        gpipe(stages, microbatches),
        recompute,
        balance=[layers // stages] * stages,
        **ONLY_BYTES,
    )
    batch = torch.rand(rows, WIDTH), torch.empty(rows, 0)  # no labels, which would be counted too
    frame = trained_memory(pipeline, [batch]).frame
    frame = frame.assign(total=frame["activations"] + frame["recompute"])
    return frame.groupby("worker")[["activations", "total"]].max()


NORMAL = "1x1", "separable 3x3", "1x1", "separable 3x3", "1x1", "1x1"
REDUCTION = "3x3", "separable 5x5", "separable 3x3", "1x1"
"""AmoebaNet-B's operations with parameters; a normal cell gives 4 states, a reduction cell 2."""


def parameters_b(layers: int, filters: int) -> int:
    """Return the number of trained parameters of AmoebaNet-B (L, F) (section 4.3.2).

    By its cells as Real et al.'s TensorFlow program has them (github.com/tensorflow/tpu,
    models/official/amoeba_net, "amoeba_net_b"), without an auxiliary head.
    """
    channels = last = before = filters // 4
    total = _convolution(3, channels, 9)
    halved, groups = False, [False, False, *[*[True] * layers, False] * 3]
    for normal in groups[:-1]:
        channels *= 1 if normal else 2
        total += _convolution(last, channels)
        if halved or before != channels:
            total += _convolution(before, channels)
        total += sum(_operation(name, channels) for name in (NORMAL if normal else REDUCTION))
        last, before = (4 if normal else 2) * channels, last
        halved = not normal
    return total + 1000 * last + 1000  # of classes


def _operation(name: str, channels: int) -> int:
    if name == "1x1":
        return _convolution(channels, channels)
    if name.startswith("separable"):  # twice: every channel by itself, then all together
        return 2 * (channels * int(name[-1]) ** 2 + _convolution(channels, channels))
    inner = channels // 4  # a bottleneck
    ends = _convolution(channels, inner) + _convolution(inner, channels)
    return ends + _convolution(inner, inner, 9)


def _convolution(before: int, after: int, kernel: int = 1) -> int:
    """Return a convolution's weights, and scale and shift of the batch norm behind it."""
    return kernel * before * after + 2 * after


def stem_to_last_cell(*, delayed: bool) -> tuple[float, int]:
    """Return the bytes that AmoebaNet-D (2, 256) puts out before its last cell; its parameters."""
    model = amoebanet_d(3 * 2, 256, device="meta")
    last = len(model) - 2
    if delayed:
        model.get_submodule("0.0").stride = (1, 1)  # type: ignore[assignment]
        for entrance in ("enter_last", "enter_before"):
            model.get_submodule(f"{last}.{entrance}.1").stride = (2, 2)  # type: ignore[assignment]
    between = estimated(lambda device: model, images(1, 224), V100).layers[:last]
    parameters = sum(p.numel() for p in model.parameters())
    return sum(layer.output_bytes for layer in between), parameters
