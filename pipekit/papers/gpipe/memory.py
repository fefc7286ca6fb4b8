"""The memory of AmoebaNet-D on the accelerators of GPipe's Table 1 (section 4.1)."""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop

from pipekit.ledger.ledger import load
from pipekit.models import amoebanet_d
from pipekit.papers.gpipe import memory_family
from pipekit.partition.balance import best_split
from pipekit.planning.balance import balance
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, gpipe
from pipekit.simulation import simulate

GB = 1e9
"""Bytes in the paper's gigabyte: only so are 12 bytes for each of 319.0M parameters "3.8GB"."""

BUDGET_BYTES = 8 * GB
"""Of an accelerator (section 4)."""

PIXELS, MINIBATCH, MICROBATCHES = 224, 128, 16
"""Image side, images of a minibatch, microbatches of it with GPipe (section 4.1)."""

OPTIMIZER_STATES = 2
"""Moving average and momentum, each as large as the parameter."""

Cut = Literal["computation", "memory"]
"""Where the network is cut: "computation", GPipe's own partitioner, which makes the variance of the
stages' estimated FLOPs least (section 3.2); "memory", so that the fullest accelerator holds as
little as can be, which is what section 4.1 expects of better partitioners."""


@dataclass(frozen=True)
class Setting:
    """How a network is trained.

    Attributes:
        name: "naive-1", without GPipe; or "pipeline-4", with GPipe on so many accelerators.
        stages: of one accelerator each.
        rows: of a microbatch.
        microbatches: of a minibatch.
        recompute: which of them are recomputed.
    """

    name: str
    stages: int
    rows: int
    microbatches: int
    recompute: Recompute

    @classmethod
    def of(
        cls, name: str, minibatch: int = MINIBATCH, microbatches: int = MICROBATCHES
    ) -> "Setting":
        """Return a column of Table 1: only GPipe cuts the minibatch and recomputes.

        Args:
            name: of the column.
            minibatch: images of it.
            microbatches: of it, with GPipe.
        """
        way, stages = name.split("-")
        if way == "naive":
            return cls(name, int(stages), minibatch, 1, "never")
        return cls(name, int(stages), minibatch // microbatches, microbatches, "always")

    def schedule(self, batches: int) -> Schedule:
        """Return GPipe's schedule, of which the naive one is the case of one microbatch."""
        return gpipe(self.stages, self.microbatches, batches)

    def plan(self, profile: Profile, cut: Cut = "computation") -> Plan:
        """Return which layers of a network each accelerator has.

        Args:
            profile: of the network, for any number of rows.
            cut: what decides.
        """
        if cut == "computation":
            layers = balance([layer.flops for layer in profile.layers], self.stages, "variance")
        else:
            spans = LayerRanges(profile.scaled(self.rows))
            first, stop = spans.every()
            held = spans.worker_bytes(
                first,
                stop,
                versions=1,
                optimizer_states=OPTIMIZER_STATES,
                in_flight=self.microbatches,
                kept=1,
                gradients=np.zeros(()),
            )
            held[np.tril_indices(len(held))] = np.inf  # a stage has a layer at least
            layers = best_split(held, self.stages, np.maximum)
        return Plan.by_hand(layers, rows=self.rows, recompute=self.recompute)


@dataclass(frozen=True)
class Column:
    """A column of Table 1 as printed, read from the ledger of claims.

    Attributes:
        setting: how it was trained.
        layers: L, normal cells of a group.
        filters: F.
        parameters: how many.
        parameter_gb: total peak memory of parameters, in GB.
        activation_gb: total peak memory of activations, in GB.
    """

    setting: Setting
    layers: int
    filters: int
    parameters: float
    parameter_gb: float
    activation_gb: float

    @classmethod
    def of(cls, name: str) -> "Column":
        """Return a column by name, say "pipeline-2"."""
        of = {key: claim for key, claim in load().items() if key.startswith(f"gpipe-table1-{name}")}
        key = f"gpipe-table1-{name}"
        layers, filters = re.findall(r"\d+", of[f"{key}-config"].value)
        return cls(
            Setting.of(name),
            int(layers),
            int(filters),
            float(str(of[f"{key}-params"].target)),
            float(of[f"{key}-param-memory"].value),
            float(of[f"{key}-activation-memory"].value),
        )


COLUMNS = ("naive-1", "pipeline-1", "pipeline-2", "pipeline-4", "pipeline-8")
"""Of Table 1."""


def amoebanet(layers: int, filters: int) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) for a microbatch of section 4.1's images."""
    return memory_family.profile(layers, filters, MINIBATCH // MICROBATCHES, PIXELS)


def held(
    profile: Profile, setting: Setting, cut: Cut = "computation", *, gradients: bool = False
) -> pd.DataFrame:
    """Return what every accelerator holds at most, simulated, in GB.

    Args:
        profile: of the network.
        setting: how it is trained.
        cut: how it is cut.
        gradients: count those of the parameters among the activations; the paper's 12 bytes leave
            them out, and its activations may.

    Returns:
        A row an accelerator: layers, parameters (weights with the optimizer's state, and the
        buffers of batch normalisation), activations, total.
    """
    plan = setting.plan(profile, cut)
    trace = simulate(setting.schedule(2), profile, plan, optimizer_states=OPTIMIZER_STATES)
    assert trace.memory is not None  # it simulates with memory always
    frame = trace.memory.frame
    activations = frame["activations"] + frame["recompute"] + frame["gradients"] * gradients
    parts = pd.DataFrame(
        {"parameters": frame["weights"] + frame["optimizer"], "activations": activations}
    )
    peaks = parts.assign(total=parts.sum(axis=1)).groupby(frame["worker"]).max() / GB
    peaks.insert(0, "layers", plan.balance)
    return peaks


def fullest(profile: Profile, setting: Setting, cut: Cut = "computation") -> float:
    """Return the GB of the accelerator that holds most: the largest total of :func:`held`."""
    return float(held(profile, setting, cut)["total"].max())


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
        model(torch.rand(MINIBATCH, 3, PIXELS, PIXELS))
    return counted * bytes_per_number / GB


def in_precision(profile: Profile, activation_bytes: int) -> Profile:
    """Return a float32 network's profile with activations of another width; weights stay."""
    part = activation_bytes / 4
    layers = tuple(
        replace(
            layer,
            output_bytes=layer.output_bytes * part,
            saved_bytes=layer.saved_bytes * part,
        )
        for layer in profile.layers
    )
    return replace(profile, layers=layers, input_bytes=profile.input_bytes * part)


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
