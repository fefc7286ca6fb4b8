"""What PipeDream's timelines show: steady state (3.2, 3.3), workers' own lists, time on links."""

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from experiments.study.traces import busy_s
from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Traffic
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import FlatBucket, PartKey
from pipekit.schedules import Message, Op, Schedule, Step, Task, lower, optimal_in_flight
from pipekit.schedules.list_scheduler import BatchPasses, Policy, choose
from pipekit.schedules.schedule import Pass
from pipekit.traces import TRANSFERS, Trace
from pipekit.trees import Tree, leaves


def run_length(replicas: Sequence[int], at_least: int, margin: int = 1) -> int:
    """Return the minibatches of a run of PipeDream's schedule that counts so many of them.

    Fast stages take some time to get ahead: ``margin`` lengthens what is not counted, and must be
    as large as the in-flight count over NOAM.
    """
    return sum(_rounds(replicas, n) for n in (at_least, *_uncounted(replicas, margin)))


def steady(trace: Trace, replicas: Sequence[int], margin: int = 1) -> tuple[float, float, int]:
    """Return start and end of the steady state, and how many minibatches end in it."""
    ends = trace.ends("BACKWARD", stage=0)
    warmup, drain = (_rounds(replicas, n) for n in _uncounted(replicas, margin))
    period = math.lcm(*replicas)
    count = (len(ends) - warmup - drain) // period * period
    if count < period:
        raise ValueError(
            f"{len(ends)} minibatches are too few for a steady state on {sum(replicas)} workers: "
            f"run at least {run_length(replicas, 1, margin)}"
        )
    return ends[warmup - 1], ends[warmup - 1 + count], count


def seconds_a_minibatch(trace: Trace, replicas: Sequence[int], margin: int = 1) -> float:
    """Return the time from one minibatch to the next in the steady state, in the trace's unit."""
    start, end, count = steady(trace, replicas, margin)
    return (end - start) / count


def utilisation(trace: Trace, replicas: Sequence[int], margin: int = 1) -> float:
    """Return the share of all workers' time by the clock in which they compute in steady state."""
    start, end, _ = steady(trace, replicas, margin)
    return busy_s(trace.passes, start, end) / (trace.workers * (end - start))


def with_links_as_stages(replicas: Sequence[int]) -> list[int]:
    """Return how many minibatches must be in flight if every link is busy like one more stage."""
    last = len(replicas) - 1
    return [count + last - stage for stage, count in enumerate(optimal_in_flight(replicas))]


def _uncounted(replicas: Sequence[int], margin: int) -> tuple[int, int]:
    in_flight = margin * optimal_in_flight(replicas)[0] * replicas[0]
    return 2 * in_flight, in_flight


def _rounds(replicas: Sequence[int], minibatches: int) -> int:
    period = math.lcm(*replicas)
    return period * math.ceil(minibatches / period)


def worker_list(
    replicas: Sequence[int], stage: int, replica: int, minibatches: int, in_flight: int
) -> tuple[Task, ...]:
    """Return one worker's 1F1B-RR list (3.3) from its own place; it owes at most ``in_flight``."""
    width, tasks = replicas[stage], list[Task]()
    own = range(replica, minibatches, width)
    for place in range(len(own) + in_flight):
        owed = place - in_flight  # the place of the backward that comes before this forward
        if owed >= 0:
            last, read = min((owed + 1) * width, minibatches) - 1, max(0, owed - in_flight + 1)
            tasks.append(Task(Op.BACKWARD, stage, own[owed], read))
            tasks.append(Task(Op.UPDATE, stage, last, owed + 1))
        if place < len(own):
            tasks.append(Task(Op.FORWARD, stage, own[place], max(0, owed + 1)))
    if 0 < len(own) < math.ceil(minibatches / width):  # others' minibatches are left over
        tasks.append(Task(Op.UPDATE, stage, minibatches - 1, len(own) + 1))
    return tuple(tasks)


def by_preference(
    stage_s: Sequence[tuple[int, int]], minibatches: int, prefer: Op, admitted: int | None = None
) -> Schedule:
    """Return what comes of always doing one kind of pass first, if one is ready (PipeDream, 3.3).

    Forwards and backwards take ``stage_s``; at most ``admitted`` minibatches are in the pipeline.
    """
    stages, none = range(len(stage_s)), [0.0] * len(stage_s)
    seconds = *([float(s) for s in each] for each in zip(*stage_s, strict=True)), none
    without_limits = [math.inf] * len(stage_s)
    passes = BatchPasses(stages, minibatches, seconds, none, [none] * 3, none, none, without_limits)
    depth = float(admitted or minibatches), *without_limits[1:]
    orders = choose(passes, Policy(depth, forwards_first=prefer is Op.FORWARD))
    return Schedule(tuple(map(_updated, orders)), f"{prefer.name.lower()} first")


def _updated(order: Sequence[Pass]) -> tuple[Task, ...]:
    """Return a worker's tasks; an update follows each backward, which reads as its forward did."""
    tasks, read, updates = list[Task](), dict[int, int](), 0
    for op, stage, k in order:
        if op is Op.FORWARD:
            read[k] = updates
            tasks.append(Task(op, stage, k, updates))
        elif op is Op.BACKWARD_INPUT:  # its other part takes no time
            updates += 1
            tasks += [Task(Op.BACKWARD, stage, k, read[k]), Task(Op.UPDATE, stage, k, updates)]
    return tuple(tasks)


class MessageCounter(Observer):
    """Counts everything that workers send one another, in ``seen``, by its purpose."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        self.seen[message.payload.value if leaves(tree) else "control"] += 1

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        self.seen["weights"] += 1

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        self.seen["control"] += 1


def link_times(trace: Trace, cluster: Cluster, schedule: Schedule) -> pd.DataFrame:
    """Return when each message of an emulated run was on its link, as ``Trace.transfers`` does."""
    sends = {step.task: step.sends for steps in lower(schedule) for step in steps.head}
    traffic, sent = Traffic(cluster), []
    for row in trace.passes.sort_values("end_s").itertuples():
        traffic.run_until(row.end_s)
        for _, to in sends[Task(Op.named(row.op), row.stage, row.microbatch, row.version)]:
            flow = traffic.send(row.worker, to, row.bytes, row.end_s)
            purpose = "activation" if row.op == "FORWARD" else "gradient"
            sent.append((flow, row.bytes, row.worker, to, purpose, row.stage, row.microbatch))
    traffic.run_until(math.inf)
    rows = [(*row, flow.start, flow.end, size) for flow, size, *row in sent]
    return pd.DataFrame(rows, columns=TRANSFERS)


def hidden_share(
    trace: Trace, transfers: pd.DataFrame, replicas: Sequence[int], margin: int = 1
) -> float:
    """Return the share of the steady state's time on links in which a worker at an end computes."""
    start, end, _ = steady(trace, replicas, margin)
    within = transfers[(transfers["start_s"] >= start) & (transfers["end_s"] <= end)]
    own, hidden = dict(iter(trace.passes.groupby("worker"))), 0.0
    for side in ("source", "destination"):
        for worker, *span in within[[side, "start_s", "end_s"]].itertuples(index=False):
            hidden += busy_s(own[worker], *span)
    return hidden / (2 * busy_s(within))
