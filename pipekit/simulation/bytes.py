"""Bytes over time on every worker, from when its tasks run."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from pipekit.schedules import OPS, Schedule, Task
from pipekit.schedules.lowering.weight_slots import weight_slots
from pipekit.simulation.costs import StageCosts
from pipekit.simulation.work import Times
from pipekit.staleness.mitigation import Mitigation
from pipekit.traces.memory import PARTS, Memory

_WEIGHTS, _GRADIENTS, _OPTIMIZER, _ACTIVATIONS, _RECOMPUTE = range(len(PARTS))
Change = tuple[float, int, float]  # when, which of PARTS, bytes more


def memory(
    schedule: Schedule,
    costs: Sequence[StageCosts],
    times: Times,
    optimizer_states: float,
    mitigation: Mitigation | None = None,
) -> Memory:
    """Return what lies in memory when, as the engine keeps it.

    All weight slots of a run are there from its start.  The gradients of a batch are there from
    the first pass that adds one to its update, the optimizer's state from the first update on.  A
    microbatch keeps what the stage received, what its layers save, and what it sends, from the
    forward's start to the backward's end; of a backward in two parts the first one's end frees what
    only it needs (``input_only_bytes``), and the second one's the rest.  If the microbatch is
    recomputed, it keeps only what was received until its second forward.
    Skips from and to other stages are received and sent like any input and output: each takes
    memory at both its ends and nowhere between.  In the first such pass gradients come layer
    by layer as activations go; all of it shows the height in between.  What has arrived and waits
    for its forward, targets and what the loss saves, gradients of activations, and what operators
    use for a moment are not counted.  A mitigation of stale weights has slots of its own, and
    what it keeps counts with the optimizer's state.
    """
    rule = mitigation or Mitigation()
    frames = []
    for worker, tasks in enumerate(schedule.workers):
        changes = [
            *_constant(schedule, tasks, costs, rule),
            *_changes(schedule, worker, costs, times),
        ]
        changes += _optimizer(worker, tasks, costs, times, optimizer_states + rule.tensors)
        frame = pd.DataFrame(changes, columns=["time_s", "part", "bytes"])
        wide = np.zeros((len(frame), len(PARTS)))
        wide[np.arange(len(frame)), frame["part"]] = frame["bytes"]
        order = np.argsort(frame["time_s"].to_numpy(), kind="stable")
        bytes_now = pd.DataFrame(wide[order].cumsum(axis=0), columns=PARTS)
        bytes_now.insert(0, "time_s", frame["time_s"].to_numpy()[order])
        bytes_now.insert(0, "worker", worker)
        # Of several changes at one time only the last shows; what ends goes before what begins.
        frames.append(bytes_now[~bytes_now["time_s"].duplicated(keep="last")])
    return Memory(pd.concat(frames, ignore_index=True), "simulated")


def _constant(
    schedule: Schedule, tasks: Sequence[Task], costs: Sequence[StageCosts], rule: Mitigation
) -> Iterator[Change]:
    for stage in sorted({task.stage for task in tasks}):
        own = [task for task in tasks if task.stage == stage]
        count = rule.slots(1 + max(weight_slots(own).slots), schedule.stashing)
        whole = costs[stage].whole
        yield 0.0, _WEIGHTS, count * whole.parameter_bytes + whole.buffer_bytes


def _optimizer(
    worker: int, tasks: Sequence[Task], costs: Sequence[StageCosts], times: Times, states: float
) -> Iterator[Change]:
    for position, task in enumerate(tasks):
        if not OPS[task.op].is_pass and task.version == 1:
            state = states * costs[task.stage].whole.parameter_bytes
            yield times.starts[worker][position], _OPTIMIZER, state


def _changes(
    schedule: Schedule, worker: int, costs: Sequence[StageCosts], times: Times
) -> Iterator[Change]:
    """Yield what activations, recomputation and gradients add and free."""
    if not schedule.trains:
        return
    tasks, update_of = schedule.workers[worker], schedule.update_of
    done_again = {
        (task.stage, task.microbatch)
        for task, again in zip(tasks, times.recomputed[worker], strict=True)
        if again is not None
    }
    summing: set[tuple[int, int]] = set()
    for task, start, end, again in zip(
        tasks, times.starts[worker], times.ends[worker], times.recomputed[worker], strict=True
    ):
        op, stage, microbatch, _ = task
        rule, cost = OPS[op], costs[stage]
        received, kept, parameters = (
            cost.received_bytes,
            cost.kept_bytes,
            cost.whole.parameter_bytes,
        )
        if not rule.is_pass:
            if (stage, task.version) not in summing:  # all its gradients are other workers'
                yield start, _GRADIENTS, parameters
            yield end, _GRADIENTS, -parameters
            continue
        part = cost.whole.input_only_bytes
        recomputed = (stage, microbatch) in done_again
        when = end if rule.own else start
        if recomputed:
            if again is not None:
                yield again, _RECOMPUTE, kept
            if rule.own:
                yield end, _RECOMPUTE, rule.activation_bytes(kept, part)
            yield when, _ACTIVATIONS, rule.activation_bytes(received, 0)
        else:
            yield when, _ACTIVATIONS, rule.activation_bytes(received + kept, part)
        update = stage, update_of[stage][microbatch]
        if rule.adds_gradient and update not in summing:
            summing.add(update)
            height = cost.gradients_at_height(op)
            yield start, _GRADIENTS, height
            yield end, _GRADIENTS, parameters - height
