"""GPipe's Figure 2 and section 3.2: who waits for whom, and which weights are read."""

from collections.abc import Sequence
from itertools import pairwise

from pipekit.engine import Run
from pipekit.papers.findings import Finding
from pipekit.papers.timelines import ThreeWays, most_active, passes_of, starts
from pipekit.schedules import Op, Schedule, ScheduleError, Task, check, lower
from pipekit.traces import Trace

Edge = tuple[str, str]
"""(what is first, what depends on it), such as ("F1", "F2"), stages counted from 1."""


def figure_2c(stages: int, microbatches: int) -> dict[tuple[str, int, int], int]:
    """Return in which slot each pass of Figure 2c begins, by (op, stage, microbatch), from 0.

    Every pass takes one slot: F_{k,t} is in slot k + t, and the backwards are the mirror image.
    """
    last = 2 * (microbatches + stages - 1) - 1
    passes = [(s, k) for s in range(stages) for k in range(microbatches)]
    forwards = {("FORWARD", s, k): s + k for s, k in passes}
    return forwards | {("BACKWARD", s, k): last - s - k for s, k in passes}


def is_figure_2c(drawn: Trace, ours: Trace) -> bool:
    """Return whether four stages with four microbatches run as drawn, in equal slots.

    Every pass is in its place, updates are last, and the bubble is 3/7; so it is in ``ours``, which
    runs the backwards in the order of the forwards.
    """
    updates_last = (drawn.frame.groupby("worker")["op"].last() == "UPDATE").all()
    three_sevenths = all(abs(trace.bubble - 3 / 7) < 1e-12 for trace in (drawn, ours))
    return starts(drawn) == figure_2c(4, 4) and three_sevenths and bool(updates_last)


def dependencies(schedule: Schedule) -> set[Edge]:
    """Return which pass depends directly on which, of a schedule with a single microbatch.

    From one worker to another these are the messages that a pass waits for.  On one worker they are
    the orders that the check insists on: with any other, the schedule is refused.
    """
    found = set()
    for worker, steps in enumerate(lower(schedule)):
        passes = [step for step in steps.head if step.task.op is not Op.UPDATE]
        for step in passes:
            for _, sender in step.receives:
                source = schedule.workers[sender][0].stage
                found.add((_name(step.task.op, source), _name(*step.task[:2])))
        for before, after in pairwise(passes):
            if _refused(schedule, worker, before.task, after.task):
                found.add((_name(*before.task[:2]), _name(*after.task[:2])))
    return found


def figure_2a(stages: int) -> set[Edge]:
    """Return the edges of Figure 2a: B_k depends on B_{k+1} and on the activations of F_k."""
    neighbours = [(k, k + 1) for k in range(1, stages)]
    forwards = {(f"F{k}", f"F{after}") for k, after in neighbours}
    backwards = {(f"B{after}", f"B{k}") for k, after in neighbours}
    return forwards | backwards | {(f"F{k}", f"B{k}") for k in range(1, stages + 1)}


def forward_waits(trace: Trace) -> list[float]:
    """Return how long each forward that waits for something starts after it could have (3.2).

    F_{k+1,t} needs the worker, which has F_{k+1,t-1} before it, and the output of F_{k,t}.  The
    first forwards of later minibatches are left out: backwards and updates are before them.  A
    negative number (in the trace's unit) is a forward that ran too early.
    """
    forwards = trace.frame[trace.frame["op"] == "FORWARD"].set_index(["stage", "microbatch"])
    begin, end, version = (forwards[name].to_dict() for name in ("start_s", "end_s", "version"))
    late = []
    for (stage, k), reads in version.items():
        same_batch = version.get((stage, k - 1)) == reads
        needs = [end[stage, k - 1]] if same_batch else []
        needs += [end[stage - 1, k]] if stage else []
        if needs and (same_batch or k == 0):
            late.append(begin[stage, k] - max(needs))
    return late


def versions_a_minibatch(trace: Trace, microbatches: int) -> set[int]:
    """Return the numbers of weight versions that the passes of one minibatch read, over all."""
    passes = passes_of(trace)
    return set(passes.groupby(passes["microbatch"] // microbatches)["version"].nunique())


def updates_a_minibatch(trace: Trace, microbatches: int, minibatches: int) -> set[int]:
    """Return the numbers of updates that a stage makes for one minibatch, over stages and all."""
    updates = trace.frame[trace.frame["op"] == "UPDATE"]
    made = updates.groupby(["stage", updates["microbatch"] // microbatches]).size()
    stages = trace.frame["stage"].unique()
    return {int(made.get((s, t), 0)) for s in stages for t in range(minibatches)}


def minibatch(trace: Trace, number: int, microbatches: int) -> Trace:
    """Return one minibatch of a run, counted from 0, its times from its own start."""
    frame = trace.frame[trace.frame["microbatch"] // microbatches == number].copy()
    frame[["start_s", "end_s"]] -= frame["start_s"].min()
    return Trace(frame, trace.label, trace.name, trace.workers)


def edges_finding(edges: set[Edge]) -> Finding:
    """Return whether a schedule of four stages has the dependencies of Figure 2a."""
    return Finding.exact("gpipe-fig2a-dependency", edges == figure_2a(4))


def naive_finding(naive: ThreeWays, picture: str) -> Finding:
    """Return how much of the time the accelerators of Figure 2b work, in percent."""
    busy = [100 * (1 - trace.bubble) for trace in naive]
    note = f"at most {max(map(most_active, naive))} accelerator active; simulated {busy[1]:.2f} %, "
    return Finding.exact("gpipe-fig2b-naive", busy[0], f"{note}emulated {busy[2]:.2f} %", picture)


def pipeline_finding(drawn: ThreeWays, ours: Trace, picture: str) -> Finding:
    """Return whether Figure 2c is as drawn; arguments as for :func:`is_figure_2c`, in all ways."""
    note = f"bubble 3/7; emulated {drawn.emulated.bubble:.4f}. The figure's backwards are reversed"
    as_in_paper = is_figure_2c(drawn.slots, ours)
    return Finding.exact("gpipe-fig2c-pipeline", as_in_paper, note, picture)


def findings(
    traces: Sequence[Trace], drawn: Sequence[Trace], trained: Sequence[Run], microbatches: int
) -> list[Finding]:
    """Return what section 3.2 claims: what a forward waits for, which weights a minibatch reads.

    No forward of any trace may be early, and none of those ``drawn`` in slots late.  The runs that
    were ``trained`` are GPipe's on four stages, as many minibatches each.
    """
    runs = [run.trace for run in trained]
    waits = [forward_waits(trace) for trace in (*traces, *runs, *drawn)]
    exact = min(map(min, waits)) >= -1e-9 and all(max(forward_waits(each)) == 0 for each in drawn)
    minibatches = len(trained[0].schedule.batches)
    versions = set[int]().union(*(versions_a_minibatch(run, microbatches) for run in runs))
    updates = (updates_a_minibatch(run, microbatches, minibatches) for run in runs)
    unlike_one = max(set[int]().union(*updates), key=lambda n: abs(n - 1))
    slots = max(max(run.weight_slots) for run in trained)
    note = f"{minibatches} minibatches, four stages, two real trainings"
    kinds = f"{sum(map(len, waits))} forwards in exact, simulated, emulated and measured traces"
    return [
        Finding.exact("gpipe-forward-dependency", exact, kinds),
        Finding.exact("gpipe-same-params-fb", max(*versions, slots), note),
        Finding.exact("gpipe-single-update", unlike_one, note),
    ]


def _name(op: Op, stage: int) -> str:
    return f"{op.value}{stage + 1}"


def _refused(schedule: Schedule, worker: int, one: Task, other: Task) -> bool:
    """Return whether the check refuses the schedule with two tasks of a worker exchanged."""
    exchange = {one: other, other: one}
    workers = list(schedule.workers)
    workers[worker] = tuple(exchange.get(task, task) for task in workers[worker])
    try:
        check(Schedule(tuple(workers)))
    except ScheduleError:
        return True
    return False
