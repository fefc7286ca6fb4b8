"""What may run before an update is known to be right, and what then has to run again.

Gradients are clipped by their norm over all stages, and an update is skipped if the gradient of any
stage is not finite.  To wait for that is a global stop between two batches.  Instead a worker may
make the update at once, run forwards on the new weights, and validate later (Qi et al., "Zero
Bubble Pipeline Parallelism", section 4): if the update was wrong, it puts the old weights back,
makes the right update, and runs these forwards again.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pipekit.schedules.clock import Replay
from pipekit.schedules.dependencies import NOBODY, Dependencies
from pipekit.schedules.lowering.steps import Message, Step, Steps
from pipekit.schedules.ops import OPS, Op
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
    """Return what each worker does if updates are validated later.

    Args:
        schedule: a finite one whose updates can wait for one another on all stages.
        steps: what :func:`pipekit.schedules.lower` made of it.

    Raises:
        ScheduleError: if an update had to be made again, workers would wait for ever.
    """
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
    """Return the tasks that wait until all workers have come to an update, and its number.

    Args:
        schedule: the table.
        later: whether updates are validated later; otherwise each worker's first one of them waits.

    Returns:
        By the task's number in the table's graph.
    """
    graph, found = schedule.dependencies, {}
    newest = _newest(graph) if later else []
    for worker, tasks in enumerate(schedule.workers):
        before = _worker(schedule, worker, newest).before if later else {}
        seen: set[int] = set()
        for number, task in enumerate(tasks, graph.first[worker]):
            if task in before:
                found[number] = before[task]
            elif not later and not OPS[task.op].is_pass and task.version not in seen:
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
        if not OPS[task.op].is_pass:
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
    """Raise ScheduleError if workers would wait for ever where every update is made again."""
    sent: set[Message] = set()
    left = [Counter(stage) for stage in schedule.update_of]  # to add, by stage and update
    arrived: Counter[int] = Counter()  # workers that have come to an update
    busy = sum(map(bool, schedule.workers))
    runs = [_Run(own.head, each) for own, each in zip(steps, found, strict=True)]
    moved = True
    while moved:
        moved = False
        for run in runs:
            while run.advance(sent, left, arrived, busy):
                moved = True
    for worker, run in enumerate(runs):
        if run.at < len(run.steps):
            task = run.steps[run.at].task
            raise ScheduleError(
                f"if an update had to be made again, worker {worker} would wait for ever before "
                f'{task}: validate="first" waits for all stages before each update',
                [(task, worker)],
            )


class _Run:
    """How far a worker is in a run in which every update turns out to be wrong."""

    def __init__(self, steps: tuple[Step, ...], validation: Validation) -> None:
        self.steps, self.validation = steps, validation
        self.at = self.last = self.pending = 0
        self.repeated = 0  # of the forwards that run again now
        self.speculated: list[Step] = []

    def advance(
        self, sent: set[Message], left: Sequence[Counter[int]], arrived: Counter[int], busy: int
    ) -> bool:
        """Do the next thing, if what it needs is there; return whether it was."""
        if self.at == len(self.steps):
            return False
        step = self.steps[self.at]
        validates = self.validation.before.get(step.task)
        if validates and validates == self.pending:
            return self._validate(sent, arrived[validates] == busy)
        op, stage, _, version = step.task
        if not OPS[op].is_pass:
            if left[stage][version]:
                return False
            if version > self.last:
                self.last = self.pending = version
                self.speculated, self.repeated = [], 0
                arrived[version] += 1
        else:
            speculative = self.validation.speculative.get(step.task)
            if not all(self._here(message, speculative, sent) for message, _ in step.receives):
                return False
            if speculative:
                self.speculated.append(step)
            left[stage][step.update] -= OPS[op].adds_gradient
        sent.update(message for message, _ in step.sends)
        self.at += 1
        return True

    def _validate(self, sent: set[Message], known: bool) -> bool:
        """Run the next speculative forward again, or be done with it."""
        if not known:
            return False
        if self.repeated == len(self.speculated):
            self.pending = 0
            return True
        step = self.speculated[self.repeated]
        again = [m._replace(attempt=1) for m, _ in step.receives if m in self.validation.again]
        if not sent.issuperset(again):
            return False
        sent.update(message._replace(attempt=1) for message, _ in step.sends)
        self.repeated += 1
        return True

    def _here(self, message: Message, speculative: int | None, sent: set[Message]) -> bool:
        if message not in sent:
            return False
        update = self.validation.again.get(message)
        return update is None or update == speculative or message._replace(attempt=1) in sent
