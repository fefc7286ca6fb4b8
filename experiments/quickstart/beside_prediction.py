"""A model trained by several methods, each beside what the simulator said before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import nn

from pipekit import Pipeline, Plan, Profile, Schedule, Trace, Watch, measure_memory, simulate
from pipekit.clusters import Cluster
from pipekit.engine import Loss, OptimizerFactory, Run
from pipekit.traces import Memory


@dataclass(frozen=True)
class Method:
    """A pipeline method for a model.

    Attributes:
        microbatches: into how many each batch is split.
        schedule: without end.
    """

    microbatches: int
    schedule: Schedule


@dataclass(frozen=True)
class Compared:
    """A training and its prediction.

    Attributes:
        run: the training, with its memory.
        simulated: what the simulator said of it.
        weights: after it, under the names of the unsplit model.
    """

    run: Run
    simulated: Trace
    weights: Mapping[str, torch.Tensor]

    @property
    def memory(self) -> Memory:
        """What lay in every worker's memory."""
        return measure_memory(self.run)


def train(
    layers: nn.Sequential,
    methods: Mapping[str, Method],
    batches: Sequence[tuple[Any, Any]],
    *,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    optimizer: OptimizerFactory,
    loss: Loss,
    optimizer_states: float = 1,
) -> dict[str, Compared]:
    """Train copies of a model by each method, and simulate the same.

    Args:
        layers: as :func:`pipekit.stages` returns them.
        methods: by name.
        batches: pairs (input, target) of as many rows each as the first.
        plan: which layers each stage has, one worker each.
        profile: of the layers.
        cluster: the workers.
        optimizer: makes an optimizer from a list of parameters.
        loss: of output and target.
        optimizer_states: tensors of a parameter's size that the optimizer keeps.
    """
    rows, found = len(batches[0][1]), {}
    for name, method in methods.items():
        sized = replace(plan, microbatch_rows=rows // method.microbatches)
        table = method.schedule.take(len(batches))
        simulated = simulate(table, profile, sized, cluster, optimizer_states=optimizer_states)
        pipeline = Pipeline(layers, table, balance=plan, optimizer=optimizer, loss=loss)
        run = pipeline.train(batches, watch=Watch(memory=True, progress=True))
        found[name] = Compared(run, simulated, pipeline.state_dict())
    return found


def table(compared: Mapping[str, Compared]) -> pd.DataFrame:
    """Return losses, seconds and the highest peak of memory, a row each."""
    rows = []
    for name, each in compared.items():
        assert each.simulated.memory is not None
        rows.append(
            {
                "method": name,
                "first loss (measured)": each.run.losses[0],
                "last loss (measured)": each.run.losses[-1],
                "s (measured)": each.run.trace.makespan_s,
                "s (simulated)": each.simulated.makespan_s,
                "MB (measured)": max(each.memory.peak_bytes) / 1e6,
                "MB (simulated)": max(each.simulated.memory.peak_bytes) / 1e6,
            }
        )
    return pd.DataFrame(rows)
