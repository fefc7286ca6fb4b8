"""The proof that a schedule can be executed, and what it keeps alive while it is."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pipekit.choices import require_kind
from pipekit.host.memory import not_collected
from pipekit.host.user_frames import hiding_frames
from pipekit.schedules.dependencies import NOBODY, NOTHING, Dependencies
from pipekit.schedules.lowering.weight_slots import slots_of
from pipekit.schedules.ops import Op, Payload
from pipekit.schedules.replay import Replay
from pipekit.schedules.schedule import Schedule, beginning, periods_under_way, starts
from pipekit.schedules.task import ScheduleError, Task
from pipekit.units import listed, plural


@dataclass(frozen=True)
class Report:
    """What a checked schedule keeps alive on each worker.

    Attributes:
        versions: ``versions[w][i]``: weight versions alive after task ``i`` of worker ``w``: of
            each of its stages the newest, and older ones that a later task reads.
        in_flight: ``in_flight[w][i]``: microbatches there whose forward is done and whose backward,
            with its part for the weights, is not; without those whose activations are offloaded.
    """

    versions: tuple[NDArray[np.int32], ...]
    in_flight: tuple[NDArray[np.int32], ...]

    @property
    def peak_versions(self) -> tuple[int, ...]:
        """The most weight versions alive at once, a worker."""
        return tuple(int(v.max(initial=1)) for v in self.versions)

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """The most microbatches in flight at once, a worker."""
        return tuple(int(v.max(initial=0)) for v in self.in_flight)

    def __repr__(self) -> str:
        versions, in_flight = listed(self.peak_versions), listed(self.peak_in_flight)
        return f"<Report, the most a worker: weight versions {versions}; in flight {in_flight}>"


@hiding_frames
def check(schedule: Schedule, *, joint_updates: bool = False) -> Report:
    """Prove a schedule executable, or say what is wrong with it.  What was proved is remembered.

    Proved: every forward stands in the table once, and every backward too if there is any, whole or
    in its two parts; no worker waits for ever (:mod:`pipekit.schedules.clock`), as long as sends do
    not block (:func:`pipekit.schedules.messages.check_messages` proves those that do); every update
    comes once on each worker that has the stage, in order, after the backwards that it sums; a
    version is read only where and after it is produced; all passes of a microbatch on a stage are
    on one worker, and read the same version, unless ``schedule.stashing`` is False.

    A schedule without end is proved for every number of batches: ``take`` of fewer leaves out tasks
    that none of its own needs.  A period that is complete by itself (:attr:`Schedule.is_closed`)
    proves its repetitions.  Else the workers are replayed, each up to the end of its first period,
    then its second, and so on; once all are as far behind these ends as a period before, they go on
    so for ever, since what a task needs is later by a period, too.

    Args:
        schedule: finite, or without end.
        joint_updates: whether the updates of a batch wait for one another on all stages, as they do
            if gradients are clipped by their norm over the whole model.

    Raises:
        ScheduleError: naming the tasks at fault.
        TypeError: it is not a schedule.
    """
    require_kind("schedule", schedule, Schedule, "schedules.two_bw(4, 8)")
    prove = _proved_endless if schedule.period else _proved
    return schedule.remembered(("proof", joint_updates), lambda: prove(schedule, joint_updates))


def _proved_endless(schedule: Schedule, joint_updates: bool) -> Report:
    _require_alike(schedule)
    if schedule.is_closed:
        one = schedule.excerpt(len(schedule.batch_stops))
        return check(one, joint_updates=joint_updates)
    periods = 4
    while True:
        some = beginning(schedule, periods)
        report = check(some, joint_updates=joint_updates)
        for number, batch in enumerate(some.batches[:-1]):
            if batch != schedule.batch(number):
                raise ScheduleError(
                    f"batch {number} has {len(batch)} microbatches by the updates of the head, and "
                    f"{len(schedule.batch(number))} by those of the period: they must be alike, or "
                    f"declare batch_size"
                )
        graph = some.dependencies
        begins = [starts(schedule, worker, periods) for worker in range(some.worker_count)]
        ends = [
            [first + each[period] for first, each in zip(graph.first, begins, strict=False)]
            for period in range(1, periods + 1)
        ]
        if Replay(graph, joint_updates).settles(ends):
            return report
        if periods > 8 * (periods_under_way(schedule) + schedule.worker_count):
            raise ScheduleError(
                f"{schedule.title}: from period to period workers fall further behind one another, "
                f"so that nothing is proved of what comes behind {periods} of them"
            )
        periods *= 2


def _require_alike(schedule: Schedule) -> None:
    size = schedule.period_microbatches
    forwards = Counter(task.stage for task in chain(*schedule.period) if task.op is Op.FORWARD)
    for stage in range(max(1, schedule.stages)):
        if not size or forwards[stage] != size:
            raise ScheduleError(
                f"the period has forwards of stage {stage} for {forwards[stage]} microbatches, and "
                f"of other stages for {size}: each stage needs as many, at least one"
            )
    if schedule.batch_size and size % schedule.batch_size:
        raise ScheduleError(
            f"batches of {schedule.batch_size} microbatches do not fill a period of {size}"
        )


@not_collected()
def _proved(schedule: Schedule, joint_updates: bool) -> Report:
    try:
        graph = schedule.dependencies
        _every_task_once(schedule, graph)
        _require_items(graph)
        _require_gradients(graph)
        if schedule.chunks > 1:
            _require_whole_microbatches(schedule, graph)
        Replay(graph, joint_updates).require_done()
        in_flight = [_check_worker(schedule, worker) for worker in range(schedule.worker_count)]
    except ScheduleError as error:
        if (chunks := schedule.chunks) == 1:
            raise
        raise ScheduleError(
            f"{error} (counted in chunks, {chunks} a microbatch: F{chunks} is F1.0 in a picture)"
        ) from None
    versions = (np.array(each.alive, dtype=np.int32) for each in slots_of(schedule))
    return Report(tuple(versions), tuple(in_flight))


def _every_task_once(schedule: Schedule, graph: Dependencies) -> None:
    """Raise for a pass that no worker has (the graph has raised for doubles)."""
    if not schedule.microbatches:
        raise ScheduleError("the schedule is empty: it has no microbatch")
    stages = range(schedule.stages)
    for stage in stages:
        if NOBODY in (row := graph.row(Op.FORWARD, stage)):
            raise _lacking(Op.FORWARD, stage, row.index(NOBODY), schedule)
    for stage in stages if schedule.trains else ():
        both = graph.senders[Payload.GRADIENT][stage], graph.adders[stage]
        lacking = [row.index(NOBODY) for row in both if NOBODY in row]
        if lacking:
            sender, adder = (row[min(lacking)] for row in both)
            parts = Op.BACKWARD if sender == adder else Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT
            raise _lacking(parts[sender != NOBODY], stage, min(lacking), schedule)


def _require_items(graph: Dependencies) -> None:
    """Raise for a task that needs what is not there, or sends what nobody takes."""
    others = range(len(graph.first) - 1)
    for number in graph.of(lambda op: op.peer is not None):
        task, worker = graph.tasks[number], graph.worker_of[number]
        if task.op.peer not in others or task.op.peer == worker:
            raise ScheduleError(
                f"worker {worker} has {task}: it needs another one of the {len(others)} workers "
                f"for a peer"
            )
    for number, item, before in graph.items.missing:
        task, worker = graph.tasks[number], graph.worker_of[number]
        lacks = f"worker {worker} has {task}, which needs {item.name} there"
        if before is None:
            raise ScheduleError(f"{lacks}, and no task before it gives them")
        why = f"{graph.tasks[before]} has taken them"
        if item in graph.tasks[before].op.gives:
            why = f"{graph.tasks[before]} has given those of version {graph.tasks[before].version}"
        raise ScheduleError(f"{lacks}, and {why}")
    for number in graph.items.untaken:
        task, worker = graph.tasks[number], graph.worker_of[number]
        raise ScheduleError(
            f"worker {worker} has {task}, and worker {task.op.peer} takes no such thing from it"
        )


def _require_gradients(graph: Dependencies) -> None:
    """Raise for an update of borrowed weights that lacks a gradient which it should sum."""
    travels = {graph.tasks[number].stage for number in graph.of(lambda op: op.borrows)}
    if not travels:
        return
    # The microbatches whose gradients each task hands on, by the order of the workers' lists.
    added: dict[int, set[int]] = {}
    come: dict[tuple[int, int], set[int]] = defaultdict(set)  # by stage and version
    for number in Replay(graph).order():
        op, stage, microbatch, version = graph.tasks[number]
        added[number] = {microbatch} if op.adds_gradient else set()
        added[number].update(*(added[each] for each in graph.items.summed.get(number, ())))
        if not op.is_pass:
            come[stage, version] |= added[number]
    for number in graph.of(lambda op: not op.is_pass):
        task = graph.tasks[number]
        summed = {graph.tasks[each].microbatch for each in graph.summed(number)}
        if task.stage in travels and (lacking := summed - come[task.stage, task.version]):
            raise ScheduleError(
                f"worker {graph.worker_of[number]} has {task}, and the gradient of microbatch "
                f"{min(lacking)} has not been sent to it"
            )


def _require_whole_microbatches(schedule: Schedule, graph: Dependencies) -> None:
    """Raise unless the chunks of a microbatch share a worker, a version and an update."""
    chunks = schedule.chunks
    for stage in range(schedule.stages):
        forwards = graph.row(Op.FORWARD, stage)
        for number in forwards:
            first = forwards[graph.tasks[number].microbatch // chunks * chunks]
            one, other = graph.tasks[first], graph.tasks[number]
            alike = graph.worker_of[first] == graph.worker_of[number]
            if not alike or one.version != other.version:
                raise ScheduleError(
                    f"{one} and {other} are of one microbatch, in {chunks} chunks: they must run "
                    f"on one worker and read one version"
                )
    ends = {summed.stop for stage in graph.updates for summed in stage}
    ends |= {schedule.microbatches, *(batch.stop for batch in schedule.batches)}
    for end in sorted(ends):
        if end % chunks:
            raise ScheduleError(
                f"a batch or an update ends behind {end} chunks, in the middle of a microbatch of "
                f"{chunks}: each needs whole microbatches"
            )


def _lacking(op: Op, stage: int, microbatch: int, schedule: Schedule) -> ScheduleError:
    task = Task(op, stage, microbatch, 0)
    run = f"though the run has {plural(schedule.microbatches, 'microbatch', 'es')}"
    return ScheduleError(f"no worker has {task}, {run}")


def _check_worker(schedule: Schedule, worker: int) -> NDArray[np.int32]:
    """Check one worker's versions; return how many microbatches are in flight after each task."""
    graph, tasks, stashing = schedule.dependencies, schedule.workers[worker], schedule.stashing
    first, stop = graph.first[worker : worker + 2]
    borrowed = schedule.borrowed[worker]
    keeping = {op for op in graph.ops if any(item.weights for item in (*op.needs, *op.gives))}
    newest = {stage: 0 for op, stage, _, _ in tasks if op in keeping and stage not in borrowed}
    producer: dict[int, Task] = {}
    in_flight = np.zeros(len(tasks), dtype=np.int32)
    change = {op: op.in_flight if schedule.trains else 0 for op in graph.ops}
    flying = 0
    for position, task in enumerate(tasks):
        op, stage, _, version = task
        if stage not in newest and not (op.is_pass and stage in borrowed):
            lacks = "only borrowed weights" if stage in borrowed else "no forward or backward"
            raise ScheduleError(
                f"worker {worker} has {task} and {lacks} of that stage: updates and other work "
                f"stand where their stage lives"
            )
        if not op.is_pass:
            expected, before = newest[stage] + 1, producer.get(stage)
            if version != expected:
                raise ScheduleError(
                    f"worker {worker}: {task} follows {before or 'the initial weights'}; the next "
                    f"update must be U{expected}"
                )
            summing = schedule.update_of[stage][task.microbatch]
            if summing != expected:
                raise ScheduleError(
                    f"worker {worker}: {task} sums up to microbatch {task.microbatch}, where "
                    f"U{summing} of that stage ends on this or another worker"
                )
            newest[stage], producer[stage] = version, task
        elif version > newest.get(stage, version):
            raise ScheduleError(
                f"worker {worker}: {task} reads version {version} before U{version} of stage "
                f"{stage} has produced it"
            )
        else:
            own = graph.own[first + position]
            is_apart = not first <= own < stop or (stashing and graph.tasks[own][3] != version)
            if is_apart and own != NOTHING:
                _refuse_own(graph, worker, first + position)
            flying += change[op]
        in_flight[position] = flying
    for stage, version in sorted(newest.items()) if schedule.trains else ():
        if version != max(schedule.update_of[stage]):
            missing = Task(Op.UPDATE, stage, schedule.microbatches - 1, version + 1)
            raise ScheduleError(
                f"worker {worker} has no {missing}, in a picture a ^ behind its last backward, "
                f"though the run has {plural(schedule.microbatches, 'microbatch', 'es')}, and "
                f"other workers may have that update"
            )
    return in_flight


def _refuse_own(graph: Dependencies, worker: int, number: int) -> NoReturn:
    """Raise for a backward that is not where its forward is, or does not read what that reads."""
    own = graph.own[number]
    task, before = graph.tasks[number], graph.tasks[own]
    if graph.worker_of[own] != worker:
        what = "its forward" if before.op.own is None else f"its {before.label}"
        raise ScheduleError(
            f"worker {worker} has {task} and another worker {what}: a backward runs where its "
            f"forward ran"
        )
    raise ScheduleError(
        f"worker {worker}: {before} reads version {before.version} and {task} version "
        f"{task.version}; they must be the same, or declare stashing=False"
    )
