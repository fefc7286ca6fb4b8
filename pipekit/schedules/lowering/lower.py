"""From a schedule to what a worker runs: whom to receive from and to send to, which weight slot."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain

from pipekit.schedules.lowering.recurring import Recurring, plus
from pipekit.schedules.lowering.steps import FIRST_TIE, MAIN, Endpoints, Message, Step, Steps
from pipekit.schedules.lowering.sums import of_updates
from pipekit.schedules.lowering.weight_slots import slots_of
from pipekit.schedules.ops import Op, Payload
from pipekit.schedules.schedule import Schedule, beginning, periods_under_way, starts
from pipekit.schedules.task import ScheduleError, Task

Skips = Sequence[tuple[int, int]]
"""Skip connections, each from a stage to a later one."""


_Ends = defaultdict[tuple[Payload | None, int], list[Endpoints]]
"""For each payload and stage, the messages of every microbatch."""


def lower(schedule: Schedule, skips: Skips = (), ties: Skips = ()) -> tuple[Steps, ...]:
    """Return every worker's steps for a ``schedule`` that :func:`check` accepts.

    ``skips`` are connections between stages: what passes there goes straight from one to the other
    (torchgpipe, section 3.3).  ``ties`` are stages that share a weight, of which each has a copy:
    its gradient comes back as a skip connection's does.

    Raises:
        ScheduleError: a backward would read a version that no longer lies where its forward read.
    """
    if not schedule.period:
        return tuple(map(Steps, _finite(schedule, skips, ties)))
    size, made = schedule.period_microbatches, schedule.period_versions
    if schedule.is_closed:
        first = _finite(schedule.before(size), skips, ties)
        # Else a period begins with its version where the one before it has left it.
        if all(step.slot == 0 for step in chain(*first)):
            return tuple(Steps((), steps, size, made) for steps in first)
    settled = periods_under_way(schedule)
    periods = settled + 4
    while True:
        first = _finite(beginning(schedule, periods), skips, ties)
        slots = 1 + max(step.slot for step in chain(*first))
        if periods >= settled + 3 * slots:
            break
        periods = settled + 3 * slots
    lowered = []
    for worker, steps in enumerate(first):
        begins, number = starts(schedule, worker, periods), [step.slot for step in steps]
        begin, last = begins[settled], begins[-1]
        for length in range(1, slots + 1):  # periods in which the weight slots come round
            stop = begins[settled + length]
            if number[stop:last] == number[begin : last - (stop - begin)]:
                versions = tuple(length * each for each in made)
                folded = Steps(steps[:begin], steps[begin:stop], length * size, versions)
                lowered.append(folded)
                break
        else:
            raise ScheduleError(
                f"the weight slots of {steps[0].task}'s worker do not come round: give train() "
                f"batches with a length, and the pipeline schedule.take(...) of as many"
            )
    return tuple(lowered)


def _finite(schedule: Schedule, skips: Skips, ties: Skips) -> list[tuple[Step, ...]]:
    received, sent = _messages(schedule, skips, ties)
    update_of = schedule.update_of
    lowered: list[tuple[Step, ...]] = []
    for tasks, (slots, _) in zip(schedule.workers, slots_of(schedule), strict=True):
        last_of_batches = batch_ends(tasks, schedule)
        last_of_updates = {
            (stage, update_of[stage][k]): position
            for position, (op, stage, k, _) in enumerate(tasks)
            if op.adds_gradient
        }
        again = {(stage, k) for op, stage, k, _ in tasks if op is Op.RECOMPUTE}
        steps = []
        for position, (task, slot) in enumerate(zip(tasks, slots, strict=True)):
            op, stage, k, _ = task
            steps.append(
                Step(
                    task,
                    received[op.receives, stage][k],
                    sent[op.sends, stage][k],
                    slot,
                    update_of[stage][k],
                    (stage, k) in last_of_batches,
                    last_of_updates.get((stage, update_of[stage][k])) == position,
                    (stage, k) in again,
                )
            )
        lowered.append(tuple(steps))
    return lowered


def _messages(schedule: Schedule, skips: Skips, ties: Skips) -> tuple[_Ends, _Ends]:
    graph, microbatches = schedule.dependencies, schedule.microbatches
    none: Endpoints = ()
    received, sent = (_Ends(lambda: [none] * microbatches) for _ in range(2))
    back = [Payload.GRADIENT] if schedule.trains else []
    both = [Payload.ACTIVATION, *back]
    each = [(stage, stage + 1, MAIN, both) for stage in range(schedule.stages - 1)]
    each += [(early, late, number, both) for number, (early, late) in enumerate(skips)]
    each += [(early, late, FIRST_TIE - number, back) for number, (early, late) in enumerate(ties)]
    for early, late, skip, payloads in each:
        for payload in payloads:
            source, destination = (early, late) if payload.step > 0 else (late, early)
            into, out_of = received[payload, destination], sent[payload, source]
            both_ends = graph.senders[payload][source], graph.receivers[payload][destination]
            for k, (sender, receiver) in enumerate(zip(*both_ends, strict=True)):
                message = Message(payload, destination, k, skip)
                into[k] += ((message, graph.worker_of[sender]),)
                out_of[k] += ((message, graph.worker_of[receiver]),)
    return received, sent


def loss_versions(schedule: Schedule) -> Recurring[int]:
    """Return the oldest version that the last stage reads for the losses of each update."""
    last = schedule.stages - 1

    def found(some: Schedule) -> list[list[int]]:
        graph = some.dependencies
        read = [graph.tasks[number].version for number in graph.row(Op.FORWARD, last)]
        oldest = [min(read[k] for k in summed) for summed in some.updates[last]]
        return [*([] for _ in range(last)), oldest]

    made = schedule.period_versions[last] if schedule.period else 0
    return of_updates(schedule, found, partial(plus, step=made))[last]


def batch_ends(tasks: Sequence[Task], schedule: Schedule) -> set[tuple[int, int]]:
    """Return (stage, microbatch) of the last microbatch of each batch in a worker's list."""
    last: dict[tuple[int, int], int] = {}
    for op, stage, microbatch, _ in tasks:
        if op is Op.FORWARD:
            key = stage, schedule.batch_of[microbatch]
            last[key] = max(microbatch, last.get(key, 0))
    return {(stage, microbatch) for (stage, _), microbatch in last.items()}
