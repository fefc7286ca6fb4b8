"""What may run before an update is known to be right, and what then has to run again.

Gradients are clipped by their norm over all stages, and an update is skipped if the gradient of any
stage is not finite.  To wait for that is a global stop between two batches.  Instead a worker may
make the update at once, run forwards on the new weights, and validate later (Qi et al., "Zero
Bubble Pipeline Parallelism", section 4): if the update was wrong, it puts the old weights back,
makes the right update, and runs these forwards again.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from pipekit.schedules.clock import Replay, Walk
from pipekit.schedules.dependencies import NOBODY, Dependencies
from pipekit.schedules.lowering.steps import Message, Steps
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task


class Validation(NamedTuple):
    """What one worker does if updates are validated later; updates go by their number.

    Only forwards that another stage waits for are speculative: they can be run again.  What depends
    on the update and adds gradients or leaves the pipeline comes after the validation, and so does
    a forward of a batch behind.  That costs nothing where every microbatch passes all stages: what
    has been through the last of them comes after all updates.

    Attributes:
        before: the tasks before which an update is validated.
        speculative: the forwards that depend on an update and run before its validation.
        again: the messages that come a second time if the update was wrong.
    """

    before: dict[Task, int]
    speculative: dict[Task, int]
    again: dict[Message, int]


def validations(schedule: Schedule, steps: Sequence[Steps]) -> tuple[Validation, ...]:
    """Return what each worker does if updates are validated later."""
    graph = schedule.dependencies
    newest = _newest(graph)
    found = tuple(_worker(schedule, worker, newest) for worker in range(len(schedule.workers)))
    for worker, own in enumerate(steps):
        for step in own.head:
            if update := found[worker].speculative.get(step.task):
                for message, receiver in step.sends:
                    found[receiver].again[message] = update
    _require_end(schedule, steps, found)
    return found


def validation_waits(schedule: Schedule, later: bool) -> dict[int, int]:
    """Return the tasks that wait until all workers have come to an update, and its number."""
    graph, found = schedule.dependencies, {}
    newest = _newest(graph) if later else []
    for worker, tasks in enumerate(schedule.workers):
        before = _worker(schedule, worker, newest).before if later else {}
        seen: set[int] = set()
        for number, task in enumerate(tasks, graph.first[worker]):
            if task in before:
                found[number] = before[task]
            elif not later and not task.op.is_pass and task.version not in seen:
                found[number] = task.version
                seen.add(task.version)
    return found


def _newest(graph: Dependencies) -> list[int]:
    """Return for each task the newest version on which its result depends, on whatever stage."""
    newest = [0] * (len(graph.tasks) + 1)  # the last is found at NOTHING, -1
    for number in Replay(graph).order():
        version = graph.tasks[number].version
        newest[number] = max(version, newest[graph.own[number]], newest[graph.source[number]])
    return newest


def _worker(schedule: Schedule, worker: int, newest: Sequence[int]) -> Validation:
    graph, found = schedule.dependencies, Validation({}, {}, {})
    last = pending = 0  # the newest update, and the one that is to be validated
    batch = NOBODY  # that runs on it
    for number, task in enumerate(schedule.workers[worker], graph.first[worker]):
        if not task.op.is_pass:
            if task.version > last:  # of several stages, the first one's is begun for all
                if pending:
                    found.before[task] = pending
                last = pending = task.version
                batch = NOBODY
        elif pending and newest[number] >= pending:
            own = schedule.batch_of[task.microbatch]
            batch = own if batch == NOBODY else batch
            if task.op is Op.FORWARD and graph.target[number] >= 0 and own == batch:
                found.speculative[task] = pending
            else:
                found.before[task], pending = pending, 0
    return found


def _require_end(schedule: Schedule, steps: Sequence[Steps], found: Sequence[Validation]) -> None:
    """Raise ScheduleError if workers would wait for ever where every update is made again.

    Things are the steps by their number, validations, and the forwards that run again behind them.
    """
    graph, every = schedule.dependencies, [*chain(*(own.head for own in steps))]
    senders = {message: n for n, step in enumerate(every) for message, _ in step.sends}
    first: dict[int, dict[int, int]] = defaultdict(dict)  # update of a version, by worker
    validates: dict[int, int] = {}  # the version, by the validation
    repeats: dict[int, int] = {}  # what runs again, by its second run
    lists: list[list[int]] = []
    size = len(every)
    for worker, own in enumerate(found):
        things: list[int] = []
        speculated: list[int] = []
        for number in range(*graph.first[worker : worker + 2]):
            op, _, _, version = task = every[number].task
            if task in own.before:
                validates[size] = own.before[task]
                repeats |= {size + 1 + place: each for place, each in enumerate(speculated)}
                things += range(size, size + 1 + len(speculated))
                size += 1 + len(speculated)
            if task in own.speculative:
                speculated.append(number)
            elif not op.is_pass and worker not in first[version]:
                first[version][worker], speculated = number, []
            things.append(number)
        lists.append(things)
    second = {number: again for again, number in repeats.items()}
    busy = [worker for worker, things in enumerate(lists) if things]

    def needs(thing: int) -> Iterator[int]:
        if thing in validates:
            arrived = first[validates[thing]]
            yield from (arrived.get(worker, NOBODY) for worker in busy)
            return
        number = repeats.get(thing, thing)
        step, here = every[number], found[graph.worker_of[number]]
        if not step.task.op.is_pass:
            yield from graph.summed(number)
        for message, _ in step.receives:
            update = here.again.get(message)
            if thing == number:
                yield senders[message]
            if update and (thing != number or update != here.speculative.get(step.task)):
                yield second.get(senders[message], NOBODY)

    each = [tuple((need, 0.0) for need in needs(thing)) for thing in range(size)]
    clock = Walk(lists, [0.0] * size, each).run()
    for worker, (things, ran) in enumerate(zip(lists, clock.following, strict=True)):
        if ran < len(things):
            task = next(every[thing].task for thing in things[ran:] if thing < len(every))
            raise ScheduleError(
                f"if an update had to be made again, worker {worker} would wait for ever before "
                f'{task}: validate="first" waits for all stages before each update',
                [(task, worker)],
            )
