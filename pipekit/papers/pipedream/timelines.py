"""PipeDream's Figures 2, 3, 4 and 8, and what sections 2.2, 3.1 and 3.3 say of them."""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from torch import Tensor

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic
from pipekit.engine.observers.observer import Observer, Watchers
from pipekit.engine.transport import FlatBucket, PartKey
from pipekit.papers.timelines import passes_of, rows_figure
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Message, Op, Schedule, Step, Task, lower, optimal_in_flight
from pipekit.traces import TRANSFERS, Trace
from pipekit.trees import Tree, leaves

LINK_LOOKS = {"activation": "FORWARD", "gradient": "BACKWARD", "weights": "UPDATE"}
"""A message has the colour of what makes it."""


def worker_list(
    replicas: Sequence[int], stage: int, replica: int, minibatches: int, in_flight: int
) -> tuple[Task, ...]:
    """Return one worker's 1F1B-RR list (PipeDream, 3.3), from nothing but its own place.

    It never looks at another worker: round robin says which minibatches are its own, 1F1B in which
    order it runs them, and its own updates which weights it has.

    Args:
        replicas: workers of each stage.
        stage: of this worker.
        replica: which of the stage's workers this one is.
        minibatches: of the whole run.
        in_flight: minibatches whose backward it may owe at once.
    """
    width, tasks, owed, updates = replicas[stage], [], deque[Task](), 0

    def backward() -> None:
        nonlocal updates
        forward = owed.popleft()
        updates += 1
        last = min(updates * width, minibatches) - 1
        tasks.extend([forward._replace(op=Op.BACKWARD), Task(Op.UPDATE, stage, last, updates)])

    for k in range(replica, minibatches, width):
        if len(owed) == in_flight:
            backward()
        owed.append(Task(Op.FORWARD, stage, k, updates))
        tasks.append(owed[-1])
    while owed:
        backward()
    if 0 < updates < math.ceil(minibatches / width):  # others' minibatches are left over
        tasks.append(Task(Op.UPDATE, stage, minibatches - 1, updates + 1))
    return tuple(tasks)


def one_f_one_b(
    replicas: Sequence[int], minibatches: int, in_flight: Sequence[int] | None = None
) -> Schedule:
    """Return 1F1B-RR put together from the workers' own lists.

    Args:
        replicas: workers of each stage.
        minibatches: of the run.
        in_flight: minibatches that each worker of a stage has in flight; None: PipeDream's, NOAM
            at the input stage.
    """
    in_flight = in_flight or optimal_in_flight(replicas)
    return Schedule(
        tuple(
            worker_list(replicas, stage, replica, minibatches, in_flight[stage])
            for stage, width in enumerate(replicas)
            for replica in range(width)
        ),
        "1F1B-RR",
        batch_size=1,
    )


def with_links_as_stages(replicas: Sequence[int]) -> list[int]:
    """Return how many minibatches must be in flight if every link is busy like one more stage.

    NOAM counts machines only (PipeDream, 3.2); a minibatch also spends time on the links.
    """
    last = len(replicas) - 1
    return [count + last - stage for stage, count in enumerate(optimal_in_flight(replicas))]


def by_preference(
    stage_s: Sequence[tuple[int, int]], minibatches: int, prefer: Op, admitted: int | None = None
) -> Schedule:
    """Return what comes of always doing one kind of pass first (PipeDream, 3.3).

    Every worker, as soon as it is free, runs the pass it prefers if one is ready, else the other.

    Args:
        stage_s: whole time units of each stage's forward and backward.
        minibatches: of the run.
        prefer: FORWARD or BACKWARD.
        admitted: minibatches in the pipeline at most; None: as many as there are.
    """
    stages, limit = len(stage_s), admitted or minibatches
    lists: list[list[Task]] = [[] for _ in range(stages)]
    forwards, backwards, free = ([0] * stages for _ in range(3))
    ends: dict[tuple[Op, int, int], int] = {}
    reads: dict[tuple[int, int], int] = {}
    now = 0

    def arrived(op: Op, stage: int, k: int) -> bool:
        return ends.get((op, stage, k), math.inf) <= now

    def ready(op: Op, stage: int) -> bool:
        if op is Op.BACKWARD:
            k = backwards[stage]
            return k < forwards[stage] and (stage + 1 == stages or arrived(op, stage + 1, k))
        k = forwards[stage]
        admits = k - backwards[0] < limit
        return k < minibatches and (arrived(op, stage - 1, k) if stage else admits)

    def run(op: Op, stage: int) -> None:
        k = (forwards if op is Op.FORWARD else backwards)[stage]
        read = reads.setdefault((stage, k), backwards[stage])
        free[stage] = ends[op, stage, k] = now + stage_s[stage][op is Op.BACKWARD]
        lists[stage].append(Task(op, stage, k, read))
        if op is Op.FORWARD:
            forwards[stage] += 1
        else:
            backwards[stage] += 1
            lists[stage].append(Task(Op.UPDATE, stage, k, backwards[stage]))

    while min(backwards) < minibatches:
        for stage in range(stages):
            possible = [op for op in (Op.FORWARD, Op.BACKWARD) if ready(op, stage)]
            if free[stage] <= now and possible:
                run(prefer if prefer in possible else possible[0], stage)
        now += 1
    return Schedule(tuple(map(tuple, lists)), f"{prefer.name.lower()} first")


def profile_of(
    stage_s: Sequence[tuple[float, float]], output_bytes: float = 0.0, parameter_bytes: float = 0.0
) -> Profile:
    """Return a profile with one layer a stage, of so many seconds forward and backward."""
    layers = tuple(
        LayerProfile(f"stage {number}", forward, backward, output_bytes, parameter_bytes)
        for number, (forward, backward) in enumerate(stage_s)
    )
    return Profile(layers, input_bytes=output_bytes, provenance={"label": "exact"})


def runs_on(schedule: Schedule) -> dict[tuple[Op, int, int], int]:
    """Return the worker of each pass, by (op, stage, minibatch)."""
    return {
        task[:3]: worker
        for worker, tasks in enumerate(schedule.workers)
        for task in tasks
        if task.op is not Op.UPDATE
    }


def routed_round_robin(schedule: Schedule) -> bool:
    """Return whether minibatch k is on replica k mod replicas of every stage."""
    return all(
        worker == schedule.stage_workers[stage][k % len(schedule.stage_workers[stage])]
        for (_, stage, k), worker in runs_on(schedule).items()
    )


def backward_follows_forward(schedule: Schedule) -> bool:
    """Return whether every backward is on the worker that ran its forward."""
    worker = runs_on(schedule)
    return all(worker[Op.FORWARD, s, k] == w for (_, s, k), w in worker.items())


def alternates(schedule: Schedule) -> bool:
    """Return whether every worker, between start-up and drain, does one forward, one backward."""
    for tasks in schedule.workers:
        ops = [task.op for task in tasks if task.op is not Op.UPDATE]
        if not ops:
            continue
        first, last = ops.index(Op.BACKWARD), len(ops) - 1 - ops[::-1].index(Op.FORWARD)
        if any(a is b for a, b in pairwise(ops[first : last + 1])):
            return False
    return True


def steady(trace: Trace, replicas: Sequence[int]) -> tuple[float, float, int]:
    """Return start and end of the steady state, and how many minibatches end in it.

    Both are ends of backwards on the input stage, about the middle third of the run: faster stages
    take some time to get as far ahead of the slowest as they may.  It has whole rounds of the round
    robin, and ends before the input stage has admitted its last minibatch.

    Raises:
        ValueError: the run is too short to have one.
    """
    ends = passes_of(trace).query("op == 'BACKWARD' and stage == 0")["end_s"].sort_values().tolist()
    round_, fill = math.lcm(*replicas), max(3 * sum(replicas), len(ends) // 3)
    count = (len(ends) - 2 * fill) // round_ * round_
    if count < round_:
        raise ValueError(
            f"{len(ends)} minibatches are too few for a steady state on {sum(replicas)} workers: "
            f"run at least {2 * fill + round_}"
        )
    return ends[fill], ends[fill + count], count


def utilisation(trace: Trace, replicas: Sequence[int]) -> float:
    """Return the share of all workers' time in which they compute, in the steady state.

    What they compute for the minibatches that end in it: a stage nearly as slow as the slowest
    gets ahead of it only slowly, and meanwhile works on more minibatches than end.
    """
    start, end, _ = steady(trace, replicas)
    passes = passes_of(trace)
    last = passes.query("op == 'BACKWARD' and stage == 0")
    counted = last[(last["end_s"] > start) & (last["end_s"] <= end)]["microbatch"]
    own = passes[passes["microbatch"].isin(counted)]
    return float((own["end_s"] - own["start_s"]).sum() / (trace.workers * (end - start)))


def clock_utilisation(trace: Trace, replicas: Sequence[int]) -> float:
    """Return the same by the clock: whatever they compute between its start and its end."""
    start, end, _ = steady(trace, replicas)
    return _busy(passes_of(trace), start, end) / (trace.workers * (end - start))


def seconds_a_minibatch(trace: Trace, replicas: Sequence[int]) -> float:
    """Return the time from one minibatch to the next in the steady state, in the trace's unit."""
    start, end, count = steady(trace, replicas)
    return (end - start) / count


def idle_error(stage_s: Sequence[float], idle: float) -> float:
    """Return |idle - closed form| / closed form; that is 1 - mean(stage) / max(stage)."""
    expected = 1 - sum(stage_s) / len(stage_s) / max(stage_s)
    return abs(idle - expected) / expected


def link_times(trace: Trace, cluster: Cluster, schedule: Schedule) -> pd.DataFrame:
    """Return when each message of an emulated run was on its link, as ``Trace.transfers`` does.

    The engine sends a message when its pass ends and keeps it back as long as the cluster's links
    take; here the same links serve the same messages in the same order.
    """
    sends = {step.task: step.sends for steps in lower(schedule) for step in steps}
    traffic, rows = Traffic(cluster), []
    for row in passes_of(trace).sort_values("end_s").itertuples():
        for _, to in sends[Task(Op[row.op], row.stage, row.microbatch, row.version)]:
            sent = traffic.send(row.worker, to, row.bytes, row.end_s)
            purpose = "activation" if row.op == "FORWARD" else "gradient"
            rows.append((row.worker, to, purpose, row.stage, row.microbatch, *sent[:2], row.bytes))
    return pd.DataFrame(rows, columns=TRANSFERS)


def hidden_fraction(trace: Trace, transfers: pd.DataFrame, replicas: Sequence[int]) -> float:
    """Return the share of the steady state's time on links in which their machine computes.

    A message counts once for the machine that sends it and once for the one that receives it.
    """
    start, end, _ = steady(trace, replicas)
    within = transfers[(transfers["start_s"] >= start) & (transfers["end_s"] <= end)]
    passes = passes_of(trace)
    hidden = total = 0.0
    for machine in range(trace.workers):
        own = passes[passes["worker"] == machine]
        for side in ("source", "destination"):
            for row in within[within[side] == machine].itertuples():
                hidden += _busy(own, row.start_s, row.end_s)
                total += row.end_s - row.start_s
    return hidden / total


def machine_and_links(
    trace: Trace, transfers: pd.DataFrame, machine: int, window: tuple[float, float]
) -> Trace:
    """Return one machine's passes (row 0), what it sends (row 1) and what it receives (row 2).

    Only those that begin in the window, for a picture like Figures 2 and 4.
    """
    rows = [trace.frame[trace.frame["worker"] == machine].assign(worker=0)]
    for row, side in enumerate(("source", "destination"), start=1):
        there = transfers[transfers[side] == machine]
        rows.append(there.assign(worker=row, op=there["purpose"].map(LINK_LOOKS), version=0))
    frame = pd.concat(rows)[trace.frame.columns]
    frame = frame[frame["start_s"].between(*window)]
    return replace(trace, frame=frame, workers=len(rows), transfers=None, memory=None)


def machine_figure(machines: Sequence[Trace], titles: Sequence[str]) -> go.Figure:
    """Draw what :func:`machine_and_links` returns, one under another; titles without the label."""
    return rows_figure(machines, titles, ["computes", "sends", "receives"])


def messages(train: Callable[[Watchers], Any]) -> Counter[str]:
    """Count what the workers of a training send one another.

    "activation", "gradient" and "weights" are tensors; "control" is anything else.

    Args:
        train: trains with the observers that it is given.
    """
    counter = MessageCounter()
    train([counter])
    return counter.seen


class MessageCounter(Observer):
    """Counts everything that workers send one another.

    Attributes:
        seen: messages by their purpose.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count a message between stages; one without tensors is control."""
        self.seen[message.payload.value if leaves(tree) else "control"] += 1

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        """Count a part of a sum of gradients."""
        self.seen["weights"] += 1

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        """Count what decides on an update."""
        self.seen["control"] += 1


def _busy(passes: pd.DataFrame, start: float, end: float) -> float:
    clipped = passes["end_s"].clip(start, end) - passes["start_s"].clip(start, end)
    return float(clipped.sum())
