"""Weights that a worker has for a while: gathered within a group, or sent round all workers."""

from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain, pairwise

from pipekit.schedules.methods.flushed import inserted, require_positive
from pipekit.schedules.methods.looped import looped_bfs
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task, Tasks
from pipekit.schedules.transfers import (
    DISCARD,
    GATHER,
    RECEIVE_GRADIENTS,
    RECEIVE_WEIGHTS,
    SEND_GRADIENTS,
    SEND_WEIGHTS,
    SUM,
)


def sharded(schedule: Schedule, gathered: int = 3) -> Schedule:
    """Return a schedule in which each stage's weights are gathered before they are needed.

    A worker gathers ahead for its next passes and gives up what these do not need, so that it has
    the weights of ``gathered`` stages at most, one more where passes of two stages run together.
    Behind a stage's last backward its gradients are summed, while others compute (fully sharded
    data parallelism, Zhao et al., arXiv 2304.11277).  ``torch.distributed.pipelining`` does so with
    every table, for three stages.  Each worker of the ``schedule``, by a method that flushes,
    stands for a group, whose size and links ``Costs(shards=...)`` says.

    Raises:
        ScheduleError: the schedule does not have one update a batch, or ``gathered`` is below 1.
    """
    require_positive(gathered=gathered)
    versions = {task.version for task in chain(*schedule.head, *schedule.period) if task.op.is_pass}
    if versions != {0}:
        raise ScheduleError(
            f"{schedule.title} reads weight versions {sorted(versions)} in what it repeats: shard "
            f"one batch, by a method that flushes"
        )
    more = partial(_gathers, gathered=gathered)
    return inserted(schedule, more, f"{schedule.name}, sharded")


def sharded_bfs(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return :func:`.looped_bfs` with sharded weights (Lamy-Poirier, arXiv 2211.05953).

    A stage's weights are gathered twice a batch, however many microbatches it has, beside the
    passes of the stage before, and its gradients are summed beside those of the next one.
    ``stages``, ``microbatches`` and ``workers`` are as there.
    """
    return sharded(looped_bfs(stages, microbatches, workers=workers), gathered=2)


def _gathers(tasks: Tasks, second: Collection[Task], gathered: int) -> Iterator[tuple[int, Task]]:
    """Yield what a worker's tasks need of weights; each comes before a place in their list."""
    last = {task.stage: task for task in tasks if task.op.adds_gradient}
    here: dict[int, Task] = {}  # by stage whose weights are whole: its last pass, or the next
    places = [n for n, task in enumerate(tasks) if task not in second]
    nexts = _next_stages(tasks, second, gathered)
    for n, stop in pairwise([*places, len(tasks)]):
        soon = nexts[n]
        for stage in [stage for stage in here if stage not in soon]:
            yield n, here.pop(stage)._replace(op=DISCARD)
        for stage in [stage for stage in soon if stage not in here]:
            here[stage] = soon[stage]
            yield n, soon[stage]._replace(op=GATHER)
        for task in tasks[n:stop]:
            if task.op.is_pass:
                here[task.stage] = task
            if task is last.get(task.stage):
                yield stop, task._replace(op=SUM)


def _next_stages(tasks: Tasks, second: Collection[Task], count: int) -> list[dict[int, Task]]:
    """Return for each place the next passes' stages, so many or one more, with their first pass."""
    found = []
    behind: dict[int, int] = {}  # by stage, where its next pass is; the soonest first
    for place, task in reversed([*enumerate(tasks)]):
        if task.op.is_pass:
            behind.pop(task.stage, None)
            behind = {task.stage: place} | behind
        soon, later = [*behind.values()][:count], [*behind.values()][count:]
        if later and later[0] == soon[-1] + 1 and tasks[later[0]] in second:
            soon.append(later[0])
        found.append({tasks[n].stage: tasks[n] for n in soon})
    return found[::-1]


def weipipe(stages: int, microbatches: int) -> Schedule:
    """Return WeiPipe-Interleave's schedule: microbatches stay where they are, and weights travel.

    Worker ``w`` (from 0) of ``p`` runs microbatches ``w``, ``w + p``, ... through all stages, in
    turns: in each a backward of one microbatch and a forward of the next one, for which two stages'
    weights come from the worker before and go on to the one behind.  With a backward the sum of its
    stage's gradients goes on, to which each worker adds its own (Lin et al., WeiPipe, PPoPP 2025;
    ``forward_backward_step`` in github.com/Gvilenius/weipipe).  With free links a batch takes
    m (F + B) + (p - 1) max(F, B), and what is sent does not grow with the length of sequences.

    Stage ``s`` is kept and updated by worker ``s + 1`` modulo ``p``, and comes from there to the
    first worker at once; in the released code it is carried round, and each send is waited for.
    There are as many workers as ``stages``, and a multiple of so many ``microbatches`` a batch.

    Raises:
        ScheduleError: there is one stage, or no such multiple.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages == 1 or microbatches % stages:
        raise ScheduleError(
            f"WeiPipe has as many workers as stages, two or more, and as many microbatches on "
            f"each: use a multiple of them, not {microbatches} microbatches on {stages}"
        )
    return Schedule(
        tuple(tuple(_tasks(worker, stages, microbatches)) for worker in range(stages)), "WeiPipe"
    ).repeat()


def _tasks(worker: int, workers: int, microbatches: int) -> Iterator[Task]:
    kept, last = (worker - 1) % workers, workers - 1
    own = range(worker, microbatches, workers)
    forwards = [Task(Op.FORWARD, s, k, 0) for k in own for s in range(workers)]
    backwards = [Task(Op.BACKWARD, last - s, k, 0) for k in own for s in range(workers)]
    for turn in range(-1, microbatches + workers):
        # The first worker has no other one before it: it gets weights where they are kept.
        if worker and turn in (-1, 2 * (workers - worker) - 2):
            yield Task(SEND_WEIGHTS.to(0), kept, 0, 0)
        for passes, number in (backwards, turn - workers), (forwards, turn):
            if 0 <= number < microbatches:
                yield from _visit(passes[number], workers, microbatches)
            if -1 <= number < microbatches - 1 and (soon := passes[number + 1]).stage != kept:
                source = (worker - 1) % workers if soon.microbatch else (soon.stage + 1) % workers
                yield soon._replace(op=RECEIVE_WEIGHTS.to(source))
    if worker != last:
        yield Task(RECEIVE_GRADIENTS.to(last), kept, microbatches - 1, 0)
    yield Task(Op.UPDATE, kept, microbatches - 1, 1)


def _visit(task: Task, workers: int, microbatches: int) -> Iterator[Task]:
    """Yield a pass, with the gradients that it adds to and its weights' way on."""
    _, stage, microbatch, _ = task
    worker, home = microbatch % workers, (stage + 1) % workers
    before, behind = (worker - 1) % workers, (worker + 1) % workers
    is_last = microbatch + 1 == microbatches
    yield task
    if task.op is Op.BACKWARD:
        if microbatch:
            yield task._replace(op=RECEIVE_GRADIENTS.to(before), microbatch=microbatch - 1)
        target = home if is_last else behind
        if target != worker:
            yield task._replace(op=SEND_GRADIENTS.to(target))
    if not is_last and behind != home:
        yield task._replace(op=SEND_WEIGHTS.to(behind), microbatch=microbatch + 1)
    if worker != home:
        yield task._replace(op=DISCARD)
