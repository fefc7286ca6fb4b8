"""Small cells of torchgpipe's Tables 2 and 4, really trained on this machine."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import pandas as pd
from torch import Tensor, nn

from pipekit.clusters.papers import P40
from pipekit.engine import Pipeline
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.papers.timelines import as_drawn
from pipekit.papers.torchgpipe.recompute import BATCHES, batch_seconds
from pipekit.papers.torchgpipe.speed import blocks
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
        model: the network; its partition is by :func:`blocks`, of its costs reckoned for the P40.
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
        {name: batch_seconds(pipelines[name].train(batches[name]).trace) for name in cells}
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


def _rows(one: Tensor, count: int) -> Tensor:
    return one.expand(count, *one.shape[1:]).contiguous()


def _equal(cell: Small) -> float:
    """Return rows a second with equal stages, of which all together take 3 s a row."""
    rows = cell.batch / cell.microbatches
    stage = Profile.uniform(cell.stages, rows / cell.stages, 2 * rows / cell.stages)
    plan = Plan.by_hand([1] * cell.stages, recompute=cell.recompute)
    trace = simulate(as_drawn(cell.stages, cell.microbatches), stage, plan)
    return cell.batch / trace.makespan_s
