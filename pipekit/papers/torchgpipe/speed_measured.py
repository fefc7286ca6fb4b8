"""Small cells of torchgpipe's Tables 2 and 4, really trained on this machine."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit import models
from pipekit.clusters.papers import P40
from pipekit.engine import Pipeline
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.papers.timelines import as_drawn, fastest_interval, update_ends
from pipekit.papers.torchgpipe.recompute import BATCHES
from pipekit.papers.torchgpipe.speed import blocks
from pipekit.papers.torchgpipe.speed_tables import plain_sgd
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate


class Small(NamedTuple):
    """A benchmark that this machine can really train.

    Attributes:
        stages: one worker each.
        microbatches: of a batch.
        recompute: which are recomputed.
        batch: rows.
    """

    stages: int
    microbatches: int
    recompute: Recompute
    batch: int


def measured(
    model: nn.Sequential,
    image: Tensor,
    target: Tensor,
    cells: Mapping[str, Small],
    *,
    loss: nn.Module,
    optimizer: OptimizerFactory,
    rounds: int,
) -> pd.DataFrame:
    """Really train some cells in turn, a few batches each a round.

    The first cell is the baseline.  The fastest batch counts.

    Args:
        model: the network; its partition is by :func:`blocks`, of its costs estimated for the P40.
        image: one row of input, [1, ...].
        target: its target, [1, ...].
        cells: by name.
        loss: of a microbatch.
        optimizer: makes an optimizer.
        rounds: how many times each is timed.

    Returns:
        A row a cell: cell, rows/s, speedup, and the speedup simulated for stages of equal
        time and free links.
    """
    costs = Profile.analytic(model, image, P40)
    pipelines, batches = {}, {}
    for name, cell in cells.items():
        pipelines[name] = Pipeline(
            model,
            partial(as_drawn, cell.stages, cell.microbatches),
            balance=blocks(costs, cell.stages),
            optimizer=optimizer,
            loss=loss,
            recompute=cell.recompute,
            devices=["cpu"] * cell.stages,
        )
        batches[name] = [(_rows(image, cell.batch), _rows(target, cell.batch))] * BATCHES
        pipelines[name].train(batches[name][:1])  # to warm up
    seconds = pd.DataFrame(
        {
            name: fastest_interval(update_ends(pipelines[name].train(batches[name]).trace))
            for name in cells
        }
        for _ in range(rounds)
    )
    rate = pd.Series({name: cell.batch for name, cell in cells.items()}) / seconds.min()
    baseline = next(iter(cells))
    return pd.DataFrame(
        {
            "cell": name,
            "rows/s": rate[name],
            "speedup": rate[name] / rate[baseline],
            "speedup (simulated)": _equal(cell) / _equal(cells[baseline]),
        }
        for name, cell in cells.items()
    )


def small_networks(
    unet_size: Sequence[int], amoebanet_size: Sequence[int], pixels: int, rows: int, rounds: int
) -> pd.DataFrame:
    """Really train a U-Net and an AmoebaNet-D, both small, as Tables 2 and 4 do the large ones.

    Args:
        unet_size: B and C.
        amoebanet_size: L and F.
        pixels: of an image's side.
        rows: of a microbatch.
        rounds: how often each U-Net is timed; each AmoebaNet-D half as often.

    Returns:
        The rows of :func:`measured`, with the network.
    """
    image = torch.rand(1, 3, pixels, pixels)
    unet = measured(
        models.unet(*unet_size),
        image,
        torch.rand(1, 1, pixels, pixels),
        {
            "naive-1": Small(1, 1, "never", rows),
            "pipeline-1, m = 2": Small(1, 2, "except_last", 2 * rows),
            "pipeline-2, m = 4": Small(2, 4, "except_last", 4 * rows),
        },
        loss=nn.BCEWithLogitsLoss(),
        optimizer=plain_sgd,
        rounds=rounds,
    )
    amoebanet = measured(
        models.amoebanet_d(*amoebanet_size),
        image,
        torch.randint(1000, (1,)),
        {
            "m = 1, n = 2": Small(2, 1, "always", rows),
            "m = 4, n = 2": Small(2, 4, "except_last", 4 * rows),
        },
        loss=nn.CrossEntropyLoss(),
        optimizer=plain_sgd,
        rounds=rounds // 2,
    )
    both = [unet.assign(network="U-Net"), amoebanet.assign(network="AmoebaNet-D")]
    return pd.concat(both, ignore_index=True).assign(label="measured")


def _rows(one: Tensor, count: int) -> Tensor:
    return one.expand(count, *one.shape[1:]).contiguous()


def _equal(cell: Small) -> float:
    """Return rows a second with equal stages, of which all together take 3 s a row."""
    rows = cell.batch / cell.microbatches
    stage = Profile.uniform(cell.stages, rows / cell.stages, 2 * rows / cell.stages)
    plan = Plan.by_hand([1] * cell.stages, recompute=cell.recompute)
    trace = simulate(as_drawn(cell.stages, cell.microbatches), stage, plan)
    return cell.batch / trace.makespan_s
