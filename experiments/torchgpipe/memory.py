"""What recomputation saves and costs on one device (2.1); U-Nets in the memory model (4.2.2)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.costs import estimated, images
from experiments.study.tables import largest_that_fits
from experiments.study.traces import memory_of, on_cpus, trained_memory
from experiments.torchgpipe.cells import Benchmark, as_drawn, plain_sgd
from pipekit.clusters import P40
from pipekit.datasets import Batch
from pipekit.engine import Pipeline
from pipekit.models import unet
from pipekit.planning import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate

MODES: tuple[Recompute, ...] = "never", "except_last", "always"


def each_mode(
    model: nn.Sequential,
    batch: Batch,
    microbatches: int,
    modes: Sequence[Recompute] = MODES,
    **how: Any,
) -> dict[Recompute, tuple[Pipeline, Batch]]:
    """Return a pipeline on one device for each mode, with its batch; ``how``: loss, optimizer."""
    schedule, how = as_drawn(1, microbatches).repeat(), how | {"balance": [len(model)]}
    return {mode: (on_cpus(model, schedule, mode, **how), batch) for mode in modes}


class Kept(NamedTuple):
    """What a batch holds, really trained on one stage."""

    peak_bytes: int  # the most at once
    intermediate_bytes: float  # the most activations at once, without the batch itself
    parameter_bytes: float  # of weights, gradients and the optimizer's state together


def kept(pipeline: Pipeline, batch: tuple[Tensor, Tensor]) -> Kept:
    memory = trained_memory(pipeline, [batch])
    most = memory.frame.max()
    activations = (memory.frame["activations"] + memory.frame["recompute"]).max()
    given = sum(tensor.nbytes for tensor in batch)
    parameters = most[["weights", "gradients", "optimizer"]].sum()
    return Kept(memory.peak_bytes[0], activations - given, float(parameters))


PIXELS = 192

LOSS = nn.BCEWithLogitsLoss()
TRIED: Sequence[tuple[int, int, Recompute]] = (
    *((1, 1, "never"), (1, 4, "except_last"), (2, 4, "never")),
    *((2, 4, "except_last"), (4, 8, "except_last")),
)
"""(stages, microbatches, recomputed) of the small U-Nets that are trained."""

SHALLOW = 3  # convolutions a cell, from which on those between the first and the last are alike


def profile_of(convolutions: int, channels: int) -> Profile:
    """Return what one row of a U-Net (B, C) costs on the P40 (simulated)."""
    shallow = _estimated(min(convolutions, SHALLOW), channels)
    if convolutions <= SHALLOW:
        return shallow
    # A cell and the pooling behind it, or the joining before it, are 4 layers.
    times = [convolutions - 2 if number % 4 == 1 else 1 for number in range(len(shallow))]
    first = [0, *accumulate(times)]
    pairs = zip(shallow.layers, times, strict=True)
    layers = [layer for layer, count in pairs for _ in range(count)]
    named = (replace(each, name=f"{n} {each.name.split()[1]}") for n, each in enumerate(layers))
    skips = (
        replace(skip, source=first[skip.source], destination=first[skip.destination])
        for skip in shallow.skips
    )
    return replace(shallow, layers=tuple(named), skips=tuple(skips))


@cache
def _estimated(convolutions: int, channels: int) -> Profile:
    return estimated(partial(unet, convolutions, channels), images(1, PIXELS), P40)


def by_size(profile: Profile, stages: int) -> list[int]:
    """Return the partition of torchgpipe's own algorithm, by size (section 3)."""
    costs = [2 * layer.parameter_bytes + layer.saved_bytes for layer in profile.layers]
    return balance(costs, stages, "block")


def peak_bytes(profile: Profile, plan: Plan, microbatches: int) -> list[int]:
    """Return the most bytes on each device in a batch with plain SGD (simulated)."""
    table = as_drawn(len(plan.stages), microbatches)
    return list(memory_of(simulate(table, profile, plan)).peak_bytes)


def size_of(network: str) -> tuple[int, int]:
    _, convolutions, channels = network.split("-")
    return int(convolutions), int(channels)


def most_convolutions(cell: Benchmark) -> int:
    """Return the largest B that fits a row's C, devices and microbatches in the memory model."""
    _, channels = size_of(cell.network)

    def fits(convolutions: int) -> bool:
        profile = profile_of(convolutions, channels)
        plan = Plan.by_hand(by_size(profile, cell.stages), rows=cell.rows, recompute=cell.recompute)
        return max(peak_bytes(profile, plan, cell.microbatches)) <= P40.memory_bytes

    return largest_that_fits(fits)


def beside_simulated(size: Sequence[int], rows: int, pixels: int) -> pd.DataFrame:
    """Really train a U-Net (B, C) on a batch of square images in some ways, and simulate that."""
    network = unet(*size)
    batch = torch.rand(rows, 3, pixels, pixels), torch.rand(rows, 1, pixels, pixels)
    found = []
    for stages, m, recompute in TRIED:
        profile = Profile.analytic(network, batch[0][: rows // m], P40)
        plan = Plan.by_hand(by_size(profile, stages), rows=rows // m, recompute=recompute)
        how: dict[str, Any] = {"balance": plan, "optimizer": plain_sgd, "loss": LOSS}
        pipeline = on_cpus(network, as_drawn(stages, m).repeat(), **how)
        measured = trained_memory(pipeline, [batch]).peak_bytes
        simulated = peak_bytes(profile, plan, m)
        found += [(f"n = {stages}", *peaks) for peaks in zip(measured, simulated, strict=True)]
    return pd.DataFrame(found, columns=["what", "measured", "simulated"])
