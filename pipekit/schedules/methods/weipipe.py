"""WeiPipe: activations stay on their worker, and weights and gradients go round all workers."""

from collections.abc import Iterator

from pipekit.schedules.methods.flushed import require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task
from pipekit.schedules.transfers import (
    DISCARD,
    RECEIVE_GRADIENTS,
    RECEIVE_WEIGHTS,
    SEND_GRADIENTS,
    SEND_WEIGHTS,
)


def weipipe(stages: int, microbatches: int) -> Schedule:
    """Return WeiPipe-Interleave's schedule: microbatches stay where they are, and weights travel.

    Worker ``w`` (from 0) of ``p`` runs microbatches ``w``, ``w + p``, ... through all stages, in
    turns: in each a backward of one microbatch and a forward of the next one, for which two stages'
    weights come from the worker before and go on to the one behind.  With a backward the sum of its
    stage's gradients goes on, to which each worker adds its own (Lin et al., WeiPipe, PPoPP 2025;
    ``forward_backward_step`` in github.com/Gvilenius/weipipe).  So in a turn a worker sends two
    stages' weights and one stage's gradients, however long sequences are, where other pipelines
    send activations.  With free links a batch takes m (F + B) + (p - 1) max(F, B).

    Stage ``s`` is kept and updated by worker ``s + 1`` modulo ``p``, and comes from there to the
    first worker at once; in the released code it is carried round, and each send is waited for.
    There are as many workers as ``stages``, and each batch has a multiple of so many
    ``microbatches``.

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
    """Yield a worker's tasks of a batch, turn by turn."""
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
