"""How good the simulator's predictions are: seconds and bytes, beside real runs."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.clusters import Cluster, flat
from pipekit.engine import Pipeline, emulate
from pipekit.engine.stage import Loss
from pipekit.engine.versions import OptimizerFactory
from pipekit.methods import METHODS, PER_MINIBATCH
from pipekit.planning import plan
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, check
from pipekit.simulation import simulate
from pipekit.traces import Trace


@dataclass(frozen=True)
class Task:
    """What is trained in a comparison.

    Attributes:
        name: for tables.
        model: the layers.
        inputs: of one microbatch, [rows, ...].
        targets: likewise.
        loss: of a microbatch.
        optimizer: makes an optimizer.
        optimizer_states: tensors of a parameter's size that it keeps for each.
    """

    name: str
    model: nn.Sequential
    inputs: Tensor
    targets: Tensor
    loss: Loss
    optimizer: OptimizerFactory
    optimizer_states: int

    def batches(self, microbatches: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return ``count`` batches of so many microbatches."""
        whole = [torch.cat([t] * microbatches) for t in (self.inputs, self.targets)]
        return [(whole[0], whole[1])] * count


@dataclass(frozen=True)
class Case:
    """One row of a comparison.

    Attributes:
        method: a name in :data:`pipekit.methods.METHODS`.
        stages: one worker each.
        microbatches: of a batch; 1 for methods that update after every minibatch.
        batches: how many are run.
    """

    method: str
    stages: int
    microbatches: int
    batches: int

    def schedule(self, batches: int) -> Schedule:
        """Return the schedule for a number of batches."""
        return METHODS[self.method](self.stages, self.microbatches, batches)


def cases(
    methods: Iterable[str], depths: Iterable[int], microbatches: Sequence[int], batches: int
) -> list[Case]:
    """Return every case that makes sense: 2BW needs as many microbatches as stages.

    A method that updates after every minibatch has no microbatches: it gets as many minibatches as
    the others have microbatches.
    """
    made = []
    for method in methods:
        for stages in depths:
            for m in microbatches:
                if method in PER_MINIBATCH:
                    made.append(Case(method, stages, 1, m * batches))
                elif method != "2bw" or m >= stages:
                    made.append(Case(method, stages, m, batches))
    return made


def emulated_row(
    name: str, profile: Profile, case: Case, cluster: Cluster | None
) -> dict[str, object]:
    """Simulate and emulate a case; return both times."""
    schedule, split = case.schedule(case.batches), _equal_stages(profile, case.stages)
    predicted = simulate(schedule, profile, split, cluster).makespan_s
    run = emulate(schedule, profile, split, cluster)
    links = "free" if cluster is None else f"{cluster.levels[-1].used_bandwidth * 8e-9:g} Gbit/s"
    return {
        **_row(name, case, predicted, run.trace.makespan_s, "emulated"),
        "links": links,
        "counts agree": _counts_agree(schedule, run.weight_buffers, run.peak_in_flight),
    }


def measured_row(
    task: Task, profile: Profile, case: Case, repeats: int, split: Plan | None = None
) -> dict[str, object]:
    """Simulate and really train a case; return both times, ours the median of the repeats."""
    split = split or _equal_stages(profile, case.stages)
    schedule = case.schedule(case.batches)
    predicted = simulate(schedule, profile, split).makespan_s
    pipeline = _pipeline(task, case, split)
    batches = task.batches(case.microbatches, case.batches)
    runs = [pipeline.train(batches) for _ in range(1 + repeats)]
    found = statistics.median(run.trace.makespan_s for run in runs[1:])
    return {
        **_row(task.name, case, predicted, found, "measured"),
        "balance": "-".join(map(str, split.balance)),
        "counts agree": _counts_agree(schedule, runs[0].weight_buffers, runs[0].peak_in_flight),
    }


def memory_traces(
    task: Task, profile: Profile, case: Case, recompute: Recompute = "never"
) -> tuple[Trace, Trace]:
    """Return a simulated and a measured trace of a case, both with their memory."""
    split = _equal_stages(profile, case.stages, recompute)
    schedule = case.schedule(case.batches)
    simulated = simulate(schedule, profile, split, optimizer_states=task.optimizer_states)
    batches = task.batches(case.microbatches, case.batches)
    return simulated, _pipeline(task, case, split).train(batches, memory=True).trace


def memory_row(task: Task, profile: Profile, case: Case, recompute: Recompute) -> dict[str, object]:
    """Simulate and measure the peak bytes of a case; return those of the worker farthest off."""
    traces = memory_traces(task, profile, case, recompute)
    ours, theirs = (trace.memory.peak_bytes for trace in traces if trace.memory is not None)
    predicted, found = max(
        zip(ours, theirs, strict=True), key=lambda pair: abs(pair[0] / pair[1] - 1)
    )
    return {
        "model": task.name,
        "method": case.method,
        "stages": case.stages,
        "microbatches": case.microbatches,
        "recompute": recompute,
        "predicted (MB)": predicted / 1e6,
        "found (MB)": found / 1e6,
        "error": predicted / found - 1,
        "label": "measured",
    }


def every_split(task: Task, profile: Profile, case: Case, repeats: int) -> pd.DataFrame:
    """Return a measured row for every cut of the model in two, the planner's choice marked.

    The planner is PipeDream's, without replication and with free links: threads of one process
    hand tensors over by reference.
    """
    choice = plan(profile, flat(2, math.inf), method="pipedream", replicate=False)
    rows = []
    for first in range(1, len(profile)):
        split = Plan.by_hand([first, len(profile) - first], rows=profile.rows)
        row = measured_row(task, profile, case, repeats, split)
        rows.append({**row, "chosen": split.balance == choice.balance})
    return pd.DataFrame(rows)


def verdicts(
    emulated: pd.DataFrame, measured: pd.DataFrame, memory: pd.DataFrame, splits: pd.DataFrame
) -> pd.DataFrame:
    """Return a row for each thing that was to be reached: what was, and whether it was."""
    counts = pd.concat([emulated["counts agree"], measured["counts agree"]])
    off = {
        "emulated seconds": emulated["error"].abs(),
        "measured seconds": measured["error"].abs(),
        "peak bytes": memory["error"].abs(),
    }
    chosen = splits.loc[splits["chosen"], "found (s)"].iloc[0] / splits["found (s)"].min() - 1
    rows = [
        ("emulated seconds, mean error", off["emulated seconds"].mean(), 0.02),
        ("emulated seconds, worst error", off["emulated seconds"].max(), 0.05),
        ("measured seconds, mean error", off["measured seconds"].mean(), 0.08),
        ("peak bytes, worst error", off["peak bytes"].max(), 0.05),
        ("chosen plan, slower than the best", chosen, 0.05),
        ("runs whose counts are not the schedule's", float((~counts).mean()), 0.0),
    ]
    return pd.DataFrame(
        [
            {"what": what, "found": found, "at most": limit, "reached": found <= limit}
            for what, found, limit in rows
        ]
    )


def _equal_stages(profile: Profile, stages: int, recompute: Recompute = "never") -> Plan:
    return plan(profile, flat(stages, math.inf), "balance", recompute=recompute)


def _pipeline(task: Task, case: Case, split: Plan) -> Pipeline:
    return Pipeline(
        task.model,
        case.schedule,
        balance=split,
        optimizer=task.optimizer,
        loss=task.loss,
        devices=["cpu"] * case.stages,
    )


def _counts_agree(schedule: Schedule, versions: Any, in_flight: Any) -> bool:
    report = check(schedule)
    return bool(report.peak_versions == versions and report.peak_in_flight == in_flight)


def _row(name: str, case: Case, predicted: float, found: float, label: str) -> dict[str, object]:
    return {
        "model": name,
        "method": case.method,
        "stages": case.stages,
        "microbatches": case.microbatches,
        "batches": case.batches,
        "predicted (s)": predicted,
        "found (s)": found,
        "error": predicted / found - 1,
        "label": label,
    }
