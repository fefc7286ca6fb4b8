"""What a schedule would take: seconds and bytes, with nothing run."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipekit.choices import require_choice, require_kind
from pipekit.clusters import Cluster
from pipekit.host.memory import not_collected
from pipekit.host.user_frames import hiding_frames
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import OPS, Payload, Schedule, Task, check
from pipekit.simulation import alone, events
from pipekit.simulation.alone import Host
from pipekit.simulation.bytes import memory
from pipekit.simulation.costs import Costs, StageCosts, stage_costs, sums_between_workers
from pipekit.simulation.loads import Loads, Times, loads
from pipekit.simulation.sums import validation_waits
from pipekit.staleness.mitigation import Mitigation, named
from pipekit.traces import RECOMPUTE, Trace
from pipekit.traces.record import events_of, moved
from pipekit.units import require_amount


@hiding_frames
@not_collected()
def simulate(
    schedule: Schedule,
    profile: Profile | Costs,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    *,
    optimizer_states: float = 0.0,
    validate: str | None = None,
    mitigation: Mitigation | str | None = None,
    host: Host | None = None,
    batches: int | None = None,
) -> Trace:
    """Return when every task of a schedule runs, and what lies in memory when.

    Every microbatch is taken to have as many rows as the plan says, or the profile; tasks that are
    meant to run together run one after the other, as the engine runs them.  A backward in
    two parts takes the seconds that the profile has for them (``profile.split_label`` says whether
    these are assumed).  Weights that stages share (``profile.ties``) send the gradients that the
    engine sends, a microbatch's back and an update's sum to all; their copies take no memory here.

    Args:
        schedule: finite, or without end.
        profile: what each layer costs; or :class:`Costs`, if workers, microbatches or single tasks
            take other times.
        plan: which layers each stage has, on how many workers, and what is recomputed; None: one
            profiled layer a stage, nothing recomputed.
        cluster: the links; None: they cost nothing.
        optimizer_states: what the optimizer keeps, in tensors of a parameter's size: 0 for plain
            SGD, 1 with momentum, 2 for Adam.
        validate: whether updates wait for all workers, as in :class:`pipekit.Pipeline` where
            gradients are clipped or losses scaled: "first", the updates of a batch wait for one
            another; "later", what depends on them waits, and nothing turns out to be wrong.
        mitigation: as in :class:`pipekit.Pipeline`; its weight slots and tensors take memory.  The
            time in which it predicts weights or corrects gradients is not counted.
        host: what the engine takes beside the passes where all workers are on one host
            (:func:`pipekit.emulation.measured_host`), in place of links; not with replicas, ties or
            ``validate``.
        batches: how many; None: all of a finite schedule, and of one without end as many as fill
            the pipeline (:meth:`pipekit.schedules.Schedule.excerpt`).

    Returns:
        A trace in seconds, labelled "simulated", with its transfers and its memory.

    Raises:
        ScheduleError: the schedule cannot be executed.
        TypeError: the schedule or the profile is not one.
        ValueError: schedule, profile, plan and cluster do not fit together.
    """
    require_kind("schedule", schedule, Schedule, "schedules.flush(4, 8)")
    schedule = schedule.excerpt(batches)
    require_choice("validate", validate, (None, "first", "later"))
    require_amount("optimizer_states", optimizer_states)
    check(schedule, joint_updates=validate is not None)
    rule = named(mitigation) if isinstance(mitigation, str) else mitigation
    given = profile if isinstance(profile, Costs) else Costs(profile)
    require_kind("profile", given.profile, Profile, "pk.profile(model, microbatch)")
    costs = stage_costs(schedule, given.profile, plan)
    if cluster is not None:
        cluster.require_room(schedule.worker_count)
    load = loads(schedule, costs, given, cluster)
    waits = validation_waits(schedule, validate == "later") if validate else {}
    times = None
    if host is not None:
        if cluster is not None or waits:
            raise ValueError("host holds the costs of one host: leave cluster and validate out")
        times = alone.run_on_host(schedule, costs, load, host)
    elif not waits and not sums_between_workers(costs):
        times = alone.run(schedule, costs, load, cluster)
    if times is None:
        times = events.run(schedule, costs, load, cluster, waits)
    return Trace(
        _events(schedule, costs, load, times),
        "simulated",
        schedule.name,
        schedule.worker_count,
        transfers=_with_transfers(schedule, costs, times),
        memory=memory(schedule, costs, times, optimizer_states, rule, given.shards),
        chunks=schedule.chunks,
    )


def _events(
    schedule: Schedule, costs: Sequence[StageCosts], load: Loads, times: Times
) -> pd.DataFrame:
    task, stages = schedule.dependencies.columns, range(schedule.stages)
    back = [cost.received_bytes + cost.copied_bytes for cost in costs]
    sent = {
        None: [0.0 for _ in stages],
        Payload.ACTIVATION: [*(cost.sent_bytes for cost in costs[:-1]), 0.0],
        Payload.GRADIENT: [0.0, *back[1:]],
    }
    sizes = np.array([sent[op.sends] for op in OPS], dtype=float)[task.op, task.stage]
    frame = events_of(schedule, times.starts, times.ends, sizes)
    again = np.flatnonzero(~np.isnan(times.again))
    if not len(again):
        return frame.reset_index(drop=True)
    extra = frame.loc[again].assign(op=RECOMPUTE, start_s=times.again[again], bytes=0.0)
    extra["end_s"] = extra["start_s"] + load.again[again]
    both = pd.concat([frame, extra])
    return both.sort_values(["worker", "start_s"], kind="stable", ignore_index=True)


def _with_transfers(schedule: Schedule, costs: Sequence[StageCosts], times: Times) -> pd.DataFrame:
    graph = schedule.dependencies
    beside = graph.of(lambda op: op.stream)
    if not beside:
        return times.transfers

    def move(number: int) -> tuple[int, Task, float, float, float]:
        task = graph.tasks[number]
        size = costs[task.stage].item_bytes(task.op.moves) if task.op.moves else 0.0
        return graph.worker_of[number], task, times.starts[number], times.ends[number], size

    found = moved(map(move, beside))
    return found if times.transfers.empty else pd.concat([times.transfers, found])
