"""torchgpipe's Table 3: the largest U-Net on 1, 2, 4 and 8 devices (section 4.2.2)."""

from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.clusters.papers import P40
from pipekit.engine import Pipeline, measure_memory
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.models.published import PUBLISHED
from pipekit.models.unet import DEPTH, unet
from pipekit.papers.costs import estimated, images
from pipekit.papers.search import largest_that_fits
from pipekit.papers.timelines import as_drawn, memory_of
from pipekit.papers.torchgpipe.settings import Benchmark
from pipekit.planning.balance import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate
from pipekit.skips import Skippable

GIB = 2**30
PIXELS = 192


SHALLOW = 3
"""From so many convolutions a cell on, those between the first and the last are all alike."""


def profile_of(convolutions: int, channels: int) -> Profile:
    """Return what one row of a U-Net (B, C) costs on the P40 (simulated).

    Only a shallow network is estimated layer by layer; a deeper one has its inner convolutions more
    often.
    """
    shallow = _estimated(min(convolutions, SHALLOW), channels)
    if convolutions <= SHALLOW:
        return shallow
    # A cell and the pooling behind it, or the joining before it, are 4 layers.
    times = [convolutions - 2 if number % 4 == 1 else 1 for number in range(len(shallow))]
    first = [0, *accumulate(times)]
    layers = [
        layer for layer, count in zip(shallow.layers, times, strict=True) for _ in range(count)
    ]
    return replace(
        shallow,
        layers=tuple(
            replace(layer, name=f"{number} {layer.name.split()[1]}")
            for number, layer in enumerate(layers)
        ),
        skips=tuple(
            replace(skip, source=first[skip.source], destination=first[skip.destination])
            for skip in shallow.skips
        ),
    )


@cache
def _estimated(convolutions: int, channels: int) -> Profile:
    return estimated(partial(unet, convolutions, channels), images(1, PIXELS), P40)


def by_size(profile: Profile, stages: int) -> list[int]:
    """Return the partition of torchgpipe's own algorithm, by size (section 3).

    Weights, gradients and what one row leaves.
    """
    costs = [2 * layer.parameter_bytes + layer.saved_bytes for layer in profile.layers]
    return balance(costs, stages, "block")


def peak_bytes(profile: Profile, plan: Plan, microbatches: int) -> list[int]:
    """Return the most bytes on each device in a batch with plain SGD (simulated)."""
    table = as_drawn(len(plan.stages), microbatches)
    return list(memory_of(simulate(table, profile, plan)).peak_bytes)


class Row(NamedTuple):
    """A row of Table 3, simulated.

    Attributes:
        name: "pipeline-2".
        size: (B, C).
        parameters: counted.
        total: GiB of all devices.
        fullest: of the fullest device.
        weights: of weights and gradients, all devices.
        by_size: GiB of all devices with the partition by :func:`by_size`.
        as_published: whether that is the published partition.
        devices: GiB of each.
    """

    name: str
    size: tuple[int, int]
    parameters: int
    total: float
    fullest: float
    weights: float
    by_size: float
    as_published: bool
    devices: tuple[float, ...]


def size_of(network: str) -> tuple[int, int]:
    """Return (B, C) of a U-Net's name: "unet-24-128"."""
    _, convolutions, channels = network.split("-")
    return int(convolutions), int(channels)


def table3_row(cell: Benchmark) -> Row:
    """Simulate a row of Table 3 with the published partition."""
    size = size_of(cell.network)
    profile = profile_of(*size)
    own = cell.plan(by_size(profile, cell.stages))
    devices = [peak / GIB for peak in peak_bytes(profile, cell.plan(), cell.microbatches)]
    return Row(
        cell.name,
        size,
        sum(p.numel() for p in PUBLISHED[cell.network].build(device="meta").parameters()),
        sum(devices),
        max(devices),
        2 * profile.parameter_bytes / GIB,
        sum(peak_bytes(profile, own, cell.microbatches)) / GIB,
        own.balance == list(cell.balance),
        tuple(devices),
    )


def most_convolutions(cell: Benchmark) -> int:
    """Return the largest B for a row's C, devices and microbatches that fits, in the memory model.

    Partitions are by :func:`by_size`.
    """
    _, channels = size_of(cell.network)

    def fits(convolutions: int) -> bool:
        profile = profile_of(convolutions, channels)
        plan = Plan.by_hand(by_size(profile, cell.stages), rows=cell.rows, recompute=cell.recompute)
        return max(peak_bytes(profile, plan, cell.microbatches)) <= P40.memory_bytes

    return largest_that_fits(fits)


def is_symmetric(convolutions: int, channels: int) -> bool:
    """Return whether a U-Net (B, C) is built as the paper says.

    Five times the image is halved, and doubled again; in between are B convolutions, at the start
    to C channels, which double with each halving and are halved with each doubling; each size of
    the way up is joined with the same size of the way down.
    """
    network = unet(convolutions, channels, device="meta")
    x = torch.zeros(1, 3, PIXELS, PIXELS, device="meta")
    cells: list[list[int]] = [[]]  # output channels of the convolutions of each cell
    pixels = [PIXELS]
    stashed: list[tuple[int, ...]] = []
    joined = 0
    for layer in network:
        if isinstance(layer, Skippable):
            if layer.stashes:
                stashed.append(tuple(x.shape))
                x = nn.functional.max_pool2d(x, 2)
            else:
                size = stashed.pop()
                joined += size[2] == 2 * x.shape[2] and size[1] == x.shape[1]
                x = x.new_empty(1, 2 * size[1], *size[2:])
            pixels.append(x.shape[2])
            cells.append([])
        else:
            x = layer(x)
            cells[-1].append(x.shape[1])
    down = [PIXELS // 2**level for level in range(DEPTH + 1)]
    widths = [cell[0] for cell in cells[:DEPTH]]
    back = [cell[convolutions - 1] for cell in cells[DEPTH + 1 :]]
    return (
        pixels == down + down[-2::-1]
        and joined == DEPTH
        and not stashed
        and [len(cell) for cell in cells] == [convolutions] * 2 * DEPTH + [convolutions + 1]
        and widths == [channels * 2**level for level in range(DEPTH)]
        and back == [width // 2 for width in reversed(widths)]
        and tuple(x.shape) == (1, 1, PIXELS, PIXELS)
    )


def gpt2_parameters(layers: int, hidden: int, vocabulary: int, positions: int) -> int:
    """Return the parameters of GPT-2: blocks of 12 h^2 + 13 h, embeddings, and the last norm.

    The head has the weights of the embedding.
    """
    return layers * (12 * hidden**2 + 13 * hidden) + (vocabulary + positions + 2) * hidden


def measured_beside_simulated(
    model: nn.Sequential,
    inputs: Tensor,
    targets: Tensor,
    *,
    stages: int,
    microbatches: int,
    recompute: Recompute,
    loss: nn.Module,
    optimizer: OptimizerFactory,
) -> pd.DataFrame:
    """Really train one batch, and simulate it.

    Args:
        model: the network, cut by :func:`by_size`.
        inputs: of the batch, [rows, ...].
        targets: likewise.
        stages: one worker each.
        microbatches: m.
        recompute: which are recomputed.
        loss: of a microbatch.
        optimizer: makes plain SGD.

    Returns:
        A row a worker: worker, measured and simulated (most bytes held at once).
    """
    part = len(inputs) // microbatches
    profile = Profile.analytic(model, inputs[:part], P40)
    plan = Plan.by_hand(by_size(profile, stages), rows=part, recompute=recompute)
    pipeline = Pipeline(
        model,
        partial(as_drawn, stages, microbatches),
        balance=plan,
        optimizer=optimizer,
        loss=loss,
        devices=["cpu"] * stages,
    )
    memory = measure_memory(pipeline.train([(inputs, targets)], memory=True))
    return pd.DataFrame(
        {
            "worker": range(stages),
            "measured": memory.peak_bytes,
            "simulated": peak_bytes(profile, plan, microbatches),
        }
    )
