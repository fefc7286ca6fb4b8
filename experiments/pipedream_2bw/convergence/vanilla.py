"""The equivalent baselines: GPipe, PipeDream-Flush, data parallelism (PipeDream-2BW, 5.1)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from experiments.pipedream_2bw.convergence.pretraining import Network, take
from experiments.pipedream_2bw.convergence.recipe import AdamRecipe
from pipekit import Watch, oracle
from pipekit.engine import Pipeline
from pipekit.models import token_loss
from pipekit.schedules import flush, gpipe, replicate

ORDINARY = "one process, no pipeline"


def weights(
    network: Network, training: AdamRecipe, workers: int, seed: int = 0
) -> Mapping[str, Mapping[str, Tensor]]:
    """Train by each of them from the same weights on the same batches; return the final weights.

    ``workers`` counts stages of a pipeline, replicas in data parallelism, and microbatches of a
    batch. By name, the ``state_dict`` of the unsplit model; :data:`ORDINARY` is that of a loop
    which knows no schedule.
    """
    model, rows = network.build(training.sequence, seed), training.batch_rows
    data = network.data(training.sequence, rows * training.steps, 1)
    batches = take(data, rows, training.steps, seed)
    schedules = {
        "GPipe": gpipe(workers, workers).take(len(batches)),
        "PipeDream-Flush": flush(workers, workers).take(len(batches)),
        "data parallelism": replicate(flush(1, 1).take(len(batches)), workers),
    }
    how: dict[str, Any] = {"loss": token_loss, "seed": seed}
    found: dict[str, Mapping[str, Tensor]] = {}
    for name, schedule in schedules.items():
        pipeline = Pipeline(model, schedule, **how, **training.for_pipeline)
        pipeline.train(batches, watch=Watch(trace=False))
        found[name] = pipeline.state_dict()
    alone: dict[str, Any] = {
        "method": "sequential",
        "balance": [len(model)],
        "microbatches": workers,
    }
    plain = oracle.train(model, batches, **alone, **how, **training.for_oracle)
    return found | {ORDINARY: plain.weights[-1]}
