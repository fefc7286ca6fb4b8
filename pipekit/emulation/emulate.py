"""Modelled compute on the real engine: stages that wait, and pass on tensors of the right size.

So sixteen workers run for real on two cores: only what a stage computes is a wait of the profiled
seconds, and what the engine takes between two passes, some tenths of a millisecond, comes on top.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.devices import CPU
from pipekit.emulation.stage import EmulatedStageConfig
from pipekit.engine import arguments, combinations
from pipekit.engine.arguments import checked, require_runnable
from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.batches import Batch
from pipekit.engine.config import RunConfig
from pipekit.engine.observers.observer import Watchers
from pipekit.engine.options import Execution, Updates, Watch
from pipekit.engine.runs.run import Run, result_of
from pipekit.engine.runs.tables import lowered
from pipekit.engine.transports.threads import ThreadRunner
from pipekit.partition.partition import Tie, tie_ends, tie_ways
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule
from pipekit.schedules.lowering.steps import FIRST_TIE
from pipekit.simulation.costs import Costs, StageCosts, skips_of, stage_costs, ties_of
from pipekit.simulation.loads import loads


def emulate(
    schedule: Schedule,
    profile: Profile | Costs,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    observers: Watchers = (),
    *,
    validate: str | None = None,
    batches: int | None = None,
) -> Run:
    """Run a schedule for real with modelled compute and links; see :func:`pipekit.simulate`.

    Messages between stages have the profiled bytes.  Weights and their gradients are not there:
    what workers sum only has the profiled shape, and takes its time on the links.  Tasks that
    overlap (:attr:`Schedule.overlaps`) run one after the other.

    Args:
        plan: which layers each stage has, and what is recomputed; None: one profiled layer a stage.
        cluster: links to slow the messages down to; None: as fast as threads hand them over.
        observers: watch the workers, as those of :meth:`pipekit.Pipeline.train` do.
        validate: "first": stages agree on each update, by messages that the engine really sends.
        batches: how many; None: as many as fill the pipeline (:meth:`Schedule.excerpt`).

    Returns:
        A run whose trace is labelled "emulated"; its losses are zeros.

    Raises:
        ScheduleError: the schedule cannot be executed.
        ValueError: schedule, profile, plan and cluster do not fit together.
    """
    arguments.require_watchers(observers, "threads")
    require_choice("validate", validate, (None, "first"))
    given = profile if isinstance(profile, Costs) else Costs(profile)
    costs = stage_costs(schedule, given.profile, plan)
    some = schedule.excerpt(batches)
    require_runnable(some, "emulate", trains=False)
    workers = len(checked(some).workers)
    if cluster is not None:
        cluster.require_room(workers)
    if any(cost.recompute != "never" for cost in costs) and not some.stashing:
        combinations.require_compatible({combinations.RECOMPUTE, combinations.NO_STASHING})
    if validate:
        combinations.require_joint_updates(some, combinations.VALIDATE)
    skips = [(skip.source, skip.destination) for skip in skips_of(costs)]
    # What stages share, each by its place among the ties of its stages.
    ties = tuple(
        Tie(tie.layers, tuple((list(costs[stage].ties).index(number),) for stage in tie.layers))
        for number, tie in enumerate(ties_of(costs))
    )
    steps, table = lowered(some, skips, tie_ends(ties), bool(validate))
    config = RunConfig(
        table=table,
        loss=torch.nn.MSELoss(),  # what takes its place are the last stage's zeros
        ties=ties,
        updates=Updates(clip_norm=math.inf) if validate else Updates(),
        execution=Execution(cluster=cluster),
        watch=Watch(observers=tuple(observers)),
    )
    stages = [
        EmulatedStageConfig.emulating(
            index,
            cost,
            {
                FIRST_TIE - number: list(cost.ties.values())[way.copy].bytes
                for number, way in enumerate(tie_ways(ties))
                if way.late == index
            },
        )
        for index, cost in enumerate(costs)
    ]
    times = _times(some, costs, given)
    assignments = [
        WorkerAssignment(
            index=worker,
            steps=own,
            device=CPU,
            stages={
                index: replace(each, times=times.get((worker, index), {}))
                for index, each in enumerate(stages)
                if worker in each.cost.workers
            },
        )
        for worker, own in enumerate(steps)
    ]
    rows = (torch.zeros(len(batch), 1) for batch in some.batches)  # a number a microbatch
    data = (Batch(each, each, len(each), ((1,),), [1] * len(each)) for each in rows)
    if any(cost.buckets for cost in costs):  # the first sum of tensors without data imports a lot
        torch.add(*[torch.empty(1, device="meta")] * 2)
    begin = time.perf_counter()
    reports = ThreadRunner().run(assignments, config, data, None)
    return result_of(
        some.name,
        some,
        some.batches,
        reports,
        time.perf_counter() - begin,
        seed=None,
        label="emulated",
        profile=dict(given.profile.provenance),
    )


def _times(
    schedule: Schedule, costs: Sequence[StageCosts], given: Costs
) -> dict[tuple[int, int], dict[tuple[Op, int], float]]:
    """Return by worker and stage the tasks that take other times than the profile's."""
    found: dict[tuple[int, int], dict[tuple[Op, int], float]] = {}
    graph = schedule.dependencies
    factors = loads(schedule, costs, given).times
    for task, worker, factor in zip(graph.tasks, graph.worker_of, factors, strict=True):
        if factor != 1:
            number = task.version if task.op is Op.UPDATE else task.microbatch
            found.setdefault((worker, task.stage), {})[task.op, number] = factor
    return found
