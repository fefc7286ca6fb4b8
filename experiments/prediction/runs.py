"""How good the simulator's predictions are: seconds and bytes, beside real runs."""

import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from experiments.study.traces import memory_of
from pipekit.choices import require_choice
from pipekit.clusters import Cluster, flat
from pipekit.emulation import emulate
from pipekit.engine import Loss, OptimizerFactory, Pipeline, Run
from pipekit.host.memory import keep_freed_memory
from pipekit.planning import plan
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.measured import profile
from pipekit.schedules import Schedule, check
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH
from pipekit.simulation import Host, simulate
from pipekit.traces import Trace

EMULATIONS = 3
"""Of a case: one of many threads that wait on two cores may be held up by the host."""


@dataclass(frozen=True)
class TrainedModel:
    """What is trained in a comparison, with one microbatch, [rows, ...].

    The optimizer keeps so many tensors of a parameter's size for each.
    """

    name: str
    module: nn.Sequential
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
class MethodCase:
    """One row of a comparison: a name in :data:`.by_name.METHODS`, one worker a stage.

    A batch has 1 microbatch where a method updates after every minibatch.
    """

    method: str
    stages: int
    microbatches: int
    batches: int

    @property
    def schedule(self) -> Schedule:
        """The method's schedule, without end."""
        return METHODS[self.method](self.stages, self.microbatches)

    @property
    def table(self) -> Schedule:
        """The schedule of its batches."""
        return self.schedule.take(self.batches)


def cases(
    methods: Iterable[str], depths: Iterable[int], microbatches: Sequence[int], batches: int
) -> list[MethodCase]:
    """Return every case that makes sense: 2BW needs as many microbatches as stages.

    A method that updates after every minibatch has no microbatches: it gets as many minibatches as
    the others have microbatches.

    Raises:
        ValueError: a method has another name.
    """
    made = []
    for method in methods:
        require_choice("method", method, METHODS)
        for stages in depths:
            for m in microbatches:
                if method in PER_MINIBATCH:
                    made.append(MethodCase(method, stages, 1, m * batches))
                elif method != "2bw" or m >= stages:
                    made.append(MethodCase(method, stages, m, batches))
    return made


def emulated_row(
    name: str, costs: Profile, case: MethodCase, cluster: Cluster | None
) -> dict[str, Any]:
    """Simulate and emulate a case; return both times, of the emulated ones the median."""
    schedule, split = case.table, _equal_stages(costs, case.stages)
    predicted = simulate(schedule, costs, split, cluster).makespan_s
    emulations = [emulate(schedule, costs, split, cluster) for _ in range(EMULATIONS)]
    found = [run.trace.makespan_s for run in emulations]
    median = statistics.median(found)
    links = "free" if cluster is None else f"{cluster.levels[-1].used_bandwidth * 8e-9:g} Gbit/s"
    return {
        **_row(name, case, predicted, median, "emulated"),
        "spread": (max(found) - min(found)) / median,
        "links": links,
        "counts agree": all(
            _counts_agree(schedule, run.weight_slots, run.peak_in_flight) for run in emulations
        ),
    }


def as_scheduled(split: Plan, schedule: Schedule, run: Run) -> dict[str, Any]:
    """Return how a run was split, and whether it had the versions and microbatches of the table."""
    return {
        "balance": "-".join(map(str, split.balance)),
        "counts agree": _counts_agree(schedule, run.weight_slots, run.peak_in_flight),
    }


def profiled(model: TrainedModel, stages: int, passes: int) -> Profile:
    """Return a profile of a model's microbatch, taken among as many threads as there are stages."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the layers' times add up")  # they are made to
        return profile(
            model.module,
            model.inputs,
            repeats=passes,
            loss=model.loss,
            target=model.targets,
            optimizer=model.optimizer,
            others=stages - 1,
        )


def middle(profiles: Sequence[Profile]) -> Profile:
    """Return the first of several profiles of a model, with the median of all of their seconds."""
    names = [item.name for item in fields(LayerProfile) if item.name.endswith("_s")]
    layers = []
    for each in zip(*(costs.layers for costs in profiles), strict=True):
        seconds = {name: [getattr(layer, name) for layer in each] for name in names}
        medians = {name: statistics.median(s) for name, s in seconds.items() if None not in s}
        layers.append(replace(each[0], **medians))
    return replace(profiles[0], layers=tuple(layers))


def memory_traces(
    model: TrainedModel, costs: Profile, case: MethodCase, recompute: Recompute = "never"
) -> tuple[Trace, Trace]:
    """Return a simulated and a measured trace of a case, both with their memory."""
    split = _equal_stages(costs, case.stages, recompute)
    states, batches = model.optimizer_states, model.batches(case.microbatches, case.batches)
    simulated = simulate(case.table, costs, split, optimizer_states=states)
    return simulated, pipeline_of(model, case, split).train(batches, memory=True).trace


def memory_row(
    model: TrainedModel, costs: Profile, case: MethodCase, recompute: Recompute
) -> dict[str, Any]:
    """Simulate and measure the peak bytes of a case; return those of the worker farthest off."""
    traces = memory_traces(model, costs, case, recompute)
    megabytes = [memory_of(trace).peak_bytes for trace in traces]
    predicted, found = max(
        ((a / 1e6, b / 1e6) for a, b in zip(*megabytes, strict=True)),
        key=lambda pair: abs(pair[0] / pair[1] - 1),
    )
    row = _row(model.name, case, predicted, found, "measured", "MB")
    return row | {"recompute": recompute}


def every_split(model: TrainedModel, case: MethodCase, host: Host, repeats: int) -> pd.DataFrame:
    """Return a measured row for every cut of the model in two, the planner's choice marked.

    The planner is PipeDream's, without replication and with free links: threads of one process
    hand tensors over by reference.  The cuts take turns, so that all of them meet the machine's
    moods; seconds are medians over the repeats, and ``spread`` is what lies between the quartiles
    of those found, over their median.

    Args:
        model: what is trained.
        case: by which method.
        host: what this one takes beside passes, over threads.
        repeats: at least 1.
    """
    layers, rows_each = len(model.module), len(model.inputs)
    splits = [Plan.by_hand([n, layers - n], rows=rows_each) for n in range(1, layers)]
    pipelines = [pipeline_of(model, case, split) for split in splits]
    batches, schedule = model.batches(case.microbatches, case.batches), case.table
    for pipeline in pipelines:
        pipeline.train(batches)  # to warm up
    profiles, runs = [], []
    for _ in range(repeats):
        profiles.append(profiled(model, 2, passes=10))
        runs.append([pipeline.train(batches) for pipeline in pipelines])
    costs = middle(profiles)
    choice = plan(costs, flat(2, math.inf), method="pipedream", replicate=False)
    rows = []
    for split, repeated in zip(splits, zip(*runs, strict=True), strict=True):
        seconds = [run.trace.makespan_s for run in repeated]
        low, found, high = np.percentile(seconds, [25, 50, 75])
        predicted = simulate(schedule, costs, split, host=host).makespan_s
        rows.append(
            {
                **_row(model.name, case, predicted, float(found), "measured"),
                "spread": float((high - low) / found),
                **as_scheduled(split, schedule, repeated[-1]),
                "chosen": split.balance == choice.balance,
            }
        )
    return pd.DataFrame(rows)


def slower_than_best(splits: pd.DataFrame) -> float:
    """Return by how much the planner's cut of :func:`every_split` is slower, by the clock."""
    seconds = splits["found (s)"]
    return float(seconds[splits["chosen"]].iloc[0] / seconds.min() - 1)


def verdicts(
    emulated: pd.DataFrame, measured: pd.DataFrame, memory: pd.DataFrame, splits: pd.DataFrame
) -> pd.DataFrame:
    """Return a row for each thing that was to be reached: what was, and whether it was."""
    counts = pd.concat([emulated["counts agree"], measured["counts agree"]])
    decided = measured[measured["outcome"] == "decided"]
    run, trained, peak = (table["error"].abs() for table in (emulated, decided, memory))
    rows = [
        ("emulated seconds, mean error", run.mean(), 0.02),
        ("emulated seconds, worst error", run.max(), 0.05),
        ("measured seconds, mean error", trained.mean(), 0.05),
        ("measured seconds, worst error", trained.max(), 0.1),
        ("peak bytes, worst error", peak.max(), 0.05),
        ("chosen plan, slower than the best", slower_than_best(splits), 0.05),
        ("runs whose counts are not the schedule's", float((~counts).mean()), 0.0),
    ]
    table = pd.DataFrame(rows, columns=["what", "found", "at most"])
    return table.assign(reached=table["found"] <= table["at most"])


def pipeline_of(
    model: TrainedModel, case: MethodCase, split: Plan, transport: str = "threads"
) -> Pipeline:
    """Return the pipeline that trains a model by a method, cut as a plan says.

    From then on this process keeps the memory that it frees, as workers' own processes do: else the
    first batch of each run would pay for what the loops and profiles before it gave back.
    """
    keep_freed_memory()
    return Pipeline(
        model.module,
        case.schedule,
        balance=split,
        optimizer=model.optimizer,
        loss=model.loss,
        devices=["cpu"] * case.stages,
        transport=transport,
    )


def _equal_stages(costs: Profile, stages: int, recompute: Recompute = "never") -> Plan:
    return plan(costs, flat(stages, math.inf), "balance", recompute=recompute)


def _counts_agree(schedule: Schedule, versions: Any, in_flight: Any) -> bool:
    report = check(schedule)
    return bool(report.peak_versions == versions and report.peak_in_flight == in_flight)


def _row(
    name: str, case: MethodCase, predicted: float, found: float, label: str, unit: str = "s"
) -> dict[str, Any]:
    return {
        "model": name,
        **asdict(case),
        f"predicted ({unit})": predicted,
        f"found ({unit})": found,
        "error": predicted / found - 1,
        "label": label,
    }
