"""Small networks trained as torchgpipe trains them: GPipe's tasks in its order, on CPU workers."""

from collections.abc import Mapping
from typing import Any, TypeVar

import pandas as pd
from torch import nn

from experiments.study.traces import fastest_interval
from experiments.torchgpipe.cells import as_drawn
from pipekit.datasets import Batch
from pipekit.engine import Execution, Pipeline
from pipekit.plans import Recompute

BATCHES = 3
"""Of a run that is timed."""

K = TypeVar("K", bound=str)


def pipeline(
    model: nn.Sequential,
    stages: int,
    microbatches: int,
    recompute: Recompute | None = None,
    **how: Any,
) -> Pipeline:
    """Return a pipeline of m microbatches on n workers; ``how`` are its further arguments."""
    schedule = as_drawn(stages, microbatches).repeat()
    execution = Execution(devices=["cpu"] * stages, recompute=recompute)
    return Pipeline(model, schedule, execution=execution, **how)


def batch_seconds(pairs: Mapping[K, tuple[Pipeline, Batch]], rounds: int) -> pd.DataFrame:
    """Return the seconds of each pipeline's fastest batch in every round, a column a pipeline.

    They train in turn, :data:`BATCHES` batches each round, so that whatever slows the machine slows
    all (measured).
    """
    return pd.DataFrame(
        {
            name: fastest_interval(each.train([batch] * BATCHES).trace.ends("UPDATE", worker=0))
            for name, (each, batch) in pairs.items()
        }
        for _ in range(rounds)
    )
