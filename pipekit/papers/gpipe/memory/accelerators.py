"""What the accelerators of GPipe's section 4.1 hold of an AmoebaNet-D, by the memory model."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.optim import Optimizer, RMSprop

from pipekit.papers.costs import with_costs
from pipekit.papers.gpipe.memory import amoebanet_d
from pipekit.papers.gpipe.scenarios import MICROBATCHES, MINIBATCH, PIXELS, Scenario
from pipekit.papers.gpipe.timelines.partition import least_variance
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


def amoebanet(layers: int, filters: int) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) for a microbatch of section 4.1's images."""
    return amoebanet_d.profile(layers, filters, MINIBATCH // MICROBATCHES, PIXELS)


def plan_of(profile: Profile, scenario: Scenario, cut: Cut = "computation") -> Plan:
    """Return which layers of a network, profiled for any rows, each accelerator has."""
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


def held(
    profile: Profile, scenario: Scenario, cut: Cut = "computation", *, gradients: bool = False
) -> pd.DataFrame:
    """Return what every accelerator holds at most, simulated, in GB.

    With ``gradients``, those of the parameters count among the activations; the paper's 12 bytes
    leave them out, and its activations may.

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
