"""The memory of AmoebaNet-D on the accelerators of GPipe's Table 1 (section 4.1)."""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop

from pipekit.ledger import claims
from pipekit.models import amoebanet_d
from pipekit.papers.costs import images, with_costs
from pipekit.papers.findings import printed
from pipekit.papers.gpipe import memory_family
from pipekit.papers.gpipe.partition import least_variance
from pipekit.papers.gpipe.scenarios import MICROBATCHES, MINIBATCH, PIXELS, Scenario, named
from pipekit.papers.timelines import memory_of
from pipekit.partition.balance import best_split
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.simulation import simulate

GB = 1e9
"""Bytes in the paper's gigabyte: only so are 12 bytes for each of 319.0M parameters "3.8GB"."""

BUDGET_BYTES = 8 * GB
"""Of an accelerator (section 4)."""

OPTIMIZER_STATES = 2
"""Moving average and momentum, each as large as the parameter."""

Cut = Literal["computation", "memory"]
"""Where the network is cut: "computation", GPipe's own partitioner, which makes the variance of the
stages' estimated FLOPs least (section 3.2); "memory", so that the fullest accelerator holds as
little as can be, which is what section 4.1 expects of better partitioners."""

CUTS: tuple[Cut, ...] = "computation", "memory"


def plan_of(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> Plan:
    """Return which layers of a network each accelerator has.

    Args:
        profile: of the network, for any number of rows.
        scenario: how it is trained.
        cut: what decides.
    """
    if cut == "computation":
        layers = least_variance(profile, scenario.stages)
    else:
        ranges = LayerRanges(profile.scaled(scenario.rows))
        first, stop = ranges.every()
        held = ranges.worker_bytes(
            first,
            stop,
            versions=1,
            optimizer_states=OPTIMIZER_STATES,
            in_flight=scenario.microbatches,
            kept=1,
            gradients=np.zeros(()),
        )
        held[np.tril_indices(len(held))] = np.inf  # a stage has a layer at least
        layers = best_split(held, scenario.stages, np.maximum)
    return Plan.by_hand(layers, rows=scenario.rows, recompute=scenario.recompute)


@dataclass(frozen=True)
class Column:
    """A column of Table 1 as printed, read from the ledger of claims.

    Attributes:
        scenario: how it was trained.
        layers: L, normal cells of a group.
        filters: F.
        parameters: how many.
        parameter_gb: total peak memory of parameters, in GB.
        activation_gb: total peak memory of activations, in GB.
    """

    scenario: Scenario
    layers: int
    filters: int
    parameters: float
    parameter_gb: float
    activation_gb: float

    @classmethod
    def of(cls, name: str) -> "Column":
        """Return a column by name, say "pipeline-2"."""
        key = f"gpipe-table1-{name}"
        layers, filters = re.findall(r"\d+", printed(f"{key}-config"))
        return cls(
            named(name),
            int(layers),
            int(filters),
            float(str(claims.load()[f"{key}-params"].target)),
            float(printed(f"{key}-param-memory")),
            float(printed(f"{key}-activation-memory")),
        )

    @property
    def mean_gb(self) -> float:
        """GB of parameters and activations on an accelerator, on average."""
        return (self.parameter_gb + self.activation_gb) / self.scenario.stages


COLUMNS = ("naive-1", "pipeline-1", "pipeline-2", "pipeline-4", "pipeline-8")
"""Of Table 1."""


def amoebanet(layers: int, filters: int) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) for a microbatch of section 4.1's images."""
    return memory_family.profile(layers, filters, MINIBATCH // MICROBATCHES, PIXELS)


def held(
    profile: Profile, scenario: Scenario, cut: Cut = "computation", *, gradients: bool = False
) -> pd.DataFrame:
    """Return what every accelerator holds at most, simulated, in GB.

    Args:
        profile: of the network.
        scenario: how it is trained.
        cut: how it is cut.
        gradients: count those of the parameters among the activations; the paper's 12 bytes leave
            them out, and its activations may.

    Returns:
        A row an accelerator: layers, parameters (weights with the optimizer's state, and the
        buffers of batch normalisation), activations, total.
    """
    plan = plan_of(profile, scenario, cut)
    trace = simulate(scenario.schedule(2), profile, plan, optimizer_states=OPTIMIZER_STATES)
    frame = memory_of(trace).frame
    activations = frame["activations"] + frame["recompute"] + frame["gradients"] * gradients
    parts = pd.DataFrame(
        {"parameters": frame["weights"] + frame["optimizer"], "activations": activations}
    )
    peaks = parts.assign(total=parts.sum(axis=1)).groupby(frame["worker"]).max() / GB
    peaks.insert(0, "layers", plan.balance)
    return peaks


def fullest(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> float:
    """Return the GB of the accelerator that holds most: the largest total of :func:`held`."""
    return float(held(profile, scenario, cut)["total"].max())


def convolution_gb(column: Column, bytes_per_number: int) -> float:
    """Return the GB of nothing but what the convolutions put out, for a column's minibatch.

    A compiler that fuses what is between two convolutions needs little more for the backward.
    """
    counted = 0

    def count(_: nn.Module, __: object, output: Tensor) -> None:
        nonlocal counted
        counted += output.numel()

    model = amoebanet_d(3 * column.layers, column.filters, device="meta")
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    with torch.device("meta"):
        model(images(MINIBATCH, PIXELS)())
    return counted * bytes_per_number / GB


def in_precision(profile: Profile, activation_bytes: int) -> Profile:
    """Return a float32 network's profile with activations of another width; weights stay."""
    part = activation_bytes / 4
    narrow = with_costs(
        profile,
        output_bytes=lambda layer: layer.output_bytes * part,
        saved_bytes=lambda layer: layer.saved_bytes * part,
    )
    return replace(narrow, input_bytes=profile.input_bytes * part)


def rmsprop(parameters: list[nn.Parameter]) -> Optimizer:
    """Return "RMSProp-type" training's optimizer: a moving average and momentum (section 4.1)."""
    return RMSprop(parameters, lr=1e-4, momentum=0.9)


def bytes_per_parameter() -> float:
    """Return the bytes that a parameter and its optimizer's state take, counted after one step."""
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = rmsprop([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    # The step counter is one number for a whole tensor.
    kept = [t for t in optimizer.state[weight].values() if t.shape == weight.shape]
    return float(sum(t.nbytes for t in [weight, *kept]) / weight.numel())
