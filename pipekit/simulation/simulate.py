"""What a schedule would take: seconds and bytes, with nothing run."""

import numpy as np
import pandas as pd

from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import OPS, Op, Payload, Schedule, check
from pipekit.schedules.lowering.validation import validation_waits
from pipekit.simulation import events, longest_path, one_host
from pipekit.simulation.bytes import memory
from pipekit.simulation.columns import OPS_IN_ORDER, columns, once
from pipekit.simulation.costs import StageCosts, stage_costs
from pipekit.simulation.work import Times
from pipekit.staleness.mitigation import Mitigation
from pipekit.traces import RECOMPUTE, Trace


def simulate(
    schedule: Schedule,
    profile: Profile,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    *,
    optimizer_states: float = 0.0,
    overlap: float | None = None,
    validate: str | None = None,
    mitigation: Mitigation | str | None = None,
    host: one_host.Host | None = None,
    batches: int | None = None,
) -> Trace:
    """Return when every task of a schedule runs, and what lies in memory when.

    Every microbatch is taken to have as many rows as the plan says, or the profile.  A backward in
    two parts takes the seconds that the profile has for them (``profile.split_label`` says whether
    these are assumed).  Weights that stages share (``profile.ties``) send the gradients that the
    engine sends, a microbatch's back and an update's sum to all; their copies take no memory here.

    Args:
        schedule: finite, or without end.
        profile: what each layer costs.
        plan: which layers each stage has, on how many workers, and what is recomputed; None: one
            profiled layer a stage, nothing recomputed.
        cluster: the links; None: they cost nothing.
        optimizer_states: what the optimizer keeps, in tensors of a parameter's size: 0 for plain
            SGD, 1 with momentum, 2 for Adam.
        overlap: what tasks that run together take (``schedule.overlaps``), as a share of what they
            take one after the other.  They wait for the data of both, and what they give leaves at
            their end; in the trace each has its share of their time.  None: they run one after the
            other, as the engine runs them.
        validate: as in :class:`pipekit.Pipeline` where gradients are clipped or losses scaled:
            "first" has the updates of a batch wait for one another on all workers, "later" what
            depends on them; nothing turns out to be wrong.  None: there is nothing to validate.
        mitigation: as in :class:`pipekit.Pipeline`; its weight slots and tensors take memory.  The
            time in which it predicts weights or corrects gradients is not counted.
        host: what the engine takes beside the passes where all workers are on one host
            (:func:`pipekit.emulation.measured_host`), in place of links; not
            with replicas, ties, ``overlap`` or ``validate``.  None: nothing.
        batches: how many; None: all of a finite schedule, and of one without end as many as fill
            the pipeline (:meth:`pipekit.schedules.Schedule.excerpt`).

    Returns:
        A trace in seconds, labelled "simulated", with its transfers and its memory.

    Raises:
        ScheduleError: the schedule cannot be executed.
        ValueError: schedule, profile, plan and cluster do not fit together.
    """
    require_choice("validate", validate, (None, "first", "later"))
    schedule = schedule.excerpt(batches)
    check(schedule, joint_updates=validate is not None)
    rule = _named(mitigation) if isinstance(mitigation, str) else mitigation
    costs = stage_costs(schedule, profile, plan)
    workers = len(schedule.workers)
    if cluster is not None:
        cluster.require_room(workers)
    overlap = overlap if schedule.overlaps else None
    waits = validation_waits(schedule, validate == "later") if validate else {}
    together = any(cost.buckets or cost.ties for cost in costs)
    times = None
    if host is not None:
        if cluster is not None or overlap is not None or waits:
            raise ValueError("host says what one host takes: leave cluster, overlap, validate out")
        times = one_host.run(schedule, costs, host)
    elif overlap is None and not waits and not together:
        times = longest_path.run(schedule, costs, cluster)
    if times is None:
        times = events.run(schedule, costs, cluster, overlap, waits)
    return Trace(
        _events(schedule, costs, times),
        "simulated",
        schedule.name,
        workers,
        transfers=times.transfers,
        memory=memory(schedule, costs, times, optimizer_states, rule),
    )


def _events(schedule: Schedule, costs: list[StageCosts], times: Times) -> pd.DataFrame:
    task, sent = columns(schedule), _bytes_sent(costs)
    frame = _tasks(schedule).assign(
        start_s=np.concatenate(times.starts),
        end_s=np.concatenate(times.ends),
        bytes=np.array([sent[op] for op in OPS_IN_ORDER], dtype=float)[task.op, task.stage],
    )
    again = np.concatenate([np.array(each, dtype=float) for each in times.recomputed])
    done = ~np.isnan(again)
    if not done.any():
        return frame
    seconds = np.array([cost.whole.forward_s for cost in costs])
    extra = frame[done].assign(op=RECOMPUTE, start_s=again[done], bytes=0.0)
    extra["end_s"] = extra["start_s"] + seconds[extra["stage"]]
    both = pd.concat([frame, extra])
    return both.sort_values(["worker", "start_s"], kind="stable", ignore_index=True)


@once
def _tasks(schedule: Schedule) -> pd.DataFrame:
    """Return the events of a schedule's tasks without their times and bytes."""
    task, names = columns(schedule), np.array([op.name for op in OPS_IN_ORDER], dtype=object)
    return pd.DataFrame(
        {
            "worker": task.worker,
            "stage": task.stage,
            "op": names[task.op].tolist(),
            "microbatch": task.microbatch,
            "version": task.version,
        }
    )


def _bytes_sent(costs: list[StageCosts]) -> dict[Op, list[float]]:
    """Return what a task of each op and stage sends on to other stages."""
    back = [cost.received_bytes + cost.copied_bytes for cost in costs]
    sent = {
        None: [0.0] * len(costs),
        Payload.ACTIVATION: [*(cost.sent_bytes for cost in costs[:-1]), 0.0],
        Payload.GRADIENT: [0.0, *back[1:]],
    }
    return {op: sent[rule.sends] for op, rule in OPS.items()}


def _named(mitigation: str) -> Mitigation:
    from pipekit.staleness.by_name import named  # here, since the rules themselves need torch

    return named(mitigation)
