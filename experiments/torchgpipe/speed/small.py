"""Small cells of torchgpipe's Tables 2 and 4, really trained on this machine."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.timing import own_seconds
from experiments.torchgpipe.as_drawn import as_drawn
from experiments.torchgpipe.settings import plain_sgd
from experiments.torchgpipe.speed.rates import blocks
from experiments.torchgpipe.trained import batch_seconds, pipeline
from pipekit import models
from pipekit.clusters import P40
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate

ROUNDS = "speedup by round, CPU time"
"""A column: lists, empty for cells of several stages, which wait for one another."""


class Small(NamedTuple):
    """A benchmark that this machine can really train."""

    stages: int  # one worker each
    microbatches: int  # of a batch
    recompute: Recompute  # which are recomputed
    batch: int  # rows


def measured(
    model: nn.Sequential,
    image: Tensor,
    target: Tensor,
    cells: Mapping[str, Small],
    *,
    loss: nn.Module,
    rounds: int,
) -> pd.DataFrame:
    """Really train some cells in turn, a few batches each of so many ``rounds``, by plain SGD.

    The network is cut by :func:`blocks`, of its costs estimated for the P40; image and target are
    one row, [1, ...].  The fastest batch counts.

    Returns:
        A row a cell: cell, rows/s, speedup over the first, :data:`ROUNDS`, and the speedup
        simulated for stages of equal time and free links.
    """
    costs, pairs = Profile.analytic(model, image, P40), {}
    for name, cell in cells.items():
        batch = _rows(image, cell.batch), _rows(target, cell.batch)
        how = {"balance": blocks(costs, cell.stages), "optimizer": plain_sgd, "loss": loss}
        made = pipeline(model, cell.stages, cell.microbatches, cell.recompute, **how)
        pairs[name] = made, batch
        pairs[name][0].train([batch])  # to warm up
    seconds = batch_seconds(pairs, rounds)
    own = own_seconds(
        {name: pairs[name] for name, cell in cells.items() if cell.stages == 1}, rounds
    )
    rate = {name: cell.batch / float(seconds[name].min()) for name, cell in cells.items()}
    each = {name: (cells[name].batch / own[name]).to_numpy() for name in own}
    equal = {name: _equal(cell) for name, cell in cells.items()}
    first = next(iter(cells))
    return pd.DataFrame(
        {
            "cell": name,
            "rows/s": rate[name],
            "speedup": rate[name] / rate[first],
            ROUNDS: (each[name] / each[first]).tolist() if name in each else [],
            "speedup (simulated)": equal[name] / equal[first],
        }
        for name in cells
    )


def small_networks(
    unet_size: Sequence[int], amoebanet_size: Sequence[int], pixels: int, rows: int, rounds: int
) -> pd.DataFrame:
    """Really train a U-Net (B, C) and an AmoebaNet-D (L, F), as Tables 2 and 4 do the large ones.

    The rows are those of :func:`measured`, with the network; there are ``rows`` in a microbatch.
    Each U-Net is timed so many ``rounds``, each AmoebaNet-D half as often.
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
