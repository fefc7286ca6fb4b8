"""A training by the engine beside the same by the papers' update equations."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from experiments.study.differences import bit_equal, relative_difference
from pipekit import oracle
from pipekit.datasets import Batch
from pipekit.engine import OptimizerFactory, Pipeline, Run
from pipekit.host.cores import available_cores
from pipekit.schedules import Schedule


class Judged(NamedTuple):
    """The engine's run, how far its last weights are (relative 2-norm), and equality of bits."""

    run: Run
    difference: float
    losses_equal: bool
    weights_equal: bool


def judged(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Schedule,
    method: str,
    *,
    balance: Sequence[int],
    replicas: Sequence[int],
    optimizer: OptimizerFactory,
    loss: Callable[[Any, Any], Tensor],
    microbatches: int = 1,
    transport: str = "threads",
) -> Judged:
    """Train by a schedule, and by its equation's name in :mod:`pipekit.oracle`.

    ``balance`` are layers of each stage, ``replicas`` its workers; ``microbatches`` are those of a
    batch, all pipelines together.  Both have operators with as many threads.
    """
    how: dict[str, Any] = {"balance": balance, "optimizer": optimizer, "loss": loss}
    pipeline = Pipeline(model, schedule, transport=transport, **how)
    run = pipeline.train(batches)
    threads = max(1, available_cores() // sum(replicas))
    how |= {"replicas": replicas, "microbatches": microbatches, "threads": threads}
    truth = oracle.train(model, batches, method=method, **how)
    ours, theirs = dict(pipeline.state_dict()), truth.weights[-1]
    return Judged(
        run, relative_difference(ours, theirs), run.losses == truth.losses, bit_equal(ours, theirs)
    )
