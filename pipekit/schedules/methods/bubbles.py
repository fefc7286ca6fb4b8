"""Work put where a worker would wait, into a table that some method has made; PipeFisher's."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from pipekit.schedules.methods.flushed import inserted, require_positive
from pipekit.schedules.methods.one_f_one_b import flush
from pipekit.schedules.ops import ACTIVATIONS, Item, Op
from pipekit.schedules.replay import slots
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task, Tasks

_SHORTER = 1 - 1e-12

FACTORS = Item("Kronecker factors", each="stage")
"""Of a stage's Fisher information, to which each microbatch of a batch adds."""
INVERSES = Item("inverses of the factors", each="stage")

CURVATURE = Op("K", "CURVATURE", gives=(FACTORS,))
"""Adds a microbatch's products of inputs and of gradients to a stage's factors."""
INVERSION = Op("V", "INVERSION", needs=(FACTORS,), gives=(INVERSES,), slots=2)
"""Inverts them, once all microbatches of a batch are in them."""


def filled(schedule: Schedule, behind: Callable[[Task], Iterable[Task]]) -> Schedule:
    """Return a schedule with further work in its workers' idle time, where it holds nothing up.

    A worker takes such work in the order in which it may begin, each task in the first idle time
    that is left and long enough.  The tasks name the newest weight version.

    Args:
        schedule: by a method that flushes; several batches (``flush(4, 8).take(3).repeat()``) have
            more idle time for the same work.
        behind: returns the work that may begin on the same worker when a task is over, of the
            schedule or of the work itself.

    Raises:
        ScheduleError: there is not enough idle time, or work is of a stage that its worker does not
            have; or the batches do not end with a flush.
    """
    idle = iter(_idle(schedule))

    def more(tasks: Tasks, _: Collection[Task]) -> Iterator[tuple[int, Task]]:
        waiting: deque[Task] = deque()
        newest = dict.fromkeys((task.stage for task in tasks), 0)
        for place, (task, left) in enumerate(zip((*tasks, None), next(idle), strict=True)):
            while waiting and waiting[0].op.slots * _SHORTER <= left:
                work = waiting.popleft()
                if work.stage not in newest:
                    raise ScheduleError(f"{work} cannot fill idle time of a worker without it")
                left -= work.op.slots
                waiting.extend(behind(work))
                yield place, work._replace(version=newest[work.stage])
            if task:
                waiting.extend(behind(task))
                newest[task.stage] += not task.op.is_pass
        if waiting:
            batches = len(schedule.batch_stops or schedule.batches)
            raise ScheduleError(
                f"{schedule.title} has no idle time left for {waiting[0]} and {len(waiting) - 1} "
                f"tasks behind it: leave work out, or fill more batches at a time than {batches}, "
                f"flush(4, 8).take({2 * batches}).repeat() say"
            )

    return inserted(schedule, more, schedule.name)


def recomputed(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Return a schedule in which some ``stages``' forwards run again where workers would wait.

    A recomputation stands in the last idle time before its backward that is long enough, or right
    before the backward if there is none (Lynx, Chen et al., arXiv 2406.08756; which stages
    recompute, AdaPipe decides, Sun et al., ASPLOS 2024).  From it on the microbatch's activations
    are there in full.  The ``schedule`` flushes; idle time is counted in slots of the ops.

    Raises:
        ScheduleError: the batches do not end with a flush, or there is no such stage.
    """
    idle = iter(_idle(schedule))

    def more(tasks: Tasks, second: Collection[Task]) -> Iterator[tuple[int, Task]]:
        left, given = next(idle), {}
        for n, task in enumerate(tasks):
            if ACTIVATIONS in task.op.gives:
                given[task[1:3]] = n
            elif task.op in (Op.BACKWARD, Op.BACKWARD_INPUT) and task.stage in stages:
                work = task._replace(op=Op.RECOMPUTE)
                places = range(n, given[task[1:3]], -1)
                fits = (place for place in places if left[place] >= work.op.slots * _SHORTER)
                place = next(fits, n - (task in second))
                left[place] -= work.op.slots
                yield place, work

    return inserted(schedule, more, f"{schedule.name}, recomputing early", stages)


def pipefisher(stages: int, microbatches: int) -> Schedule:
    """Return PipeFisher's schedule: 1F1B, with the work of K-FAC in its bubbles.

    A microbatch's curvature may be computed once it is backward, and the factors of a stage are
    inverted once they have all microbatches of a batch.  This takes the bubbles of as many batches
    as it needs, the fewest; an update preconditions by the last inverses there are, as a part of it
    (Osawa et al., PipeFisher, MLSys 2023, arXiv 2211.14133).  The memory of factors and of what
    waits for its curvature is not counted; seconds are ``Costs(ops={CURVATURE: ..., INVERSION:
    ...})``.  Each of the ``stages`` has a worker, each batch ``microbatches``.

    Raises:
        ScheduleError: a count is below 1, or there is a single stage, which has no bubble.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages == 1:
        raise ScheduleError("one stage has no bubbles to fill: use two stages or more")

    def behind(task: Task) -> Iterator[Task]:
        if task.op.adds_gradient and task.microbatch < microbatches:
            yield task._replace(op=CURVATURE)
        if task.op is CURVATURE and task.microbatch == microbatches - 1:
            yield task._replace(op=INVERSION)

    batches = 1
    while True:
        try:
            found = filled(flush(stages, microbatches).take(batches).repeat(), behind)
        except ScheduleError:  # too few bubbles
            batches += 1
        else:
            return replace(found, name="PipeFisher")


def _idle(schedule: Schedule) -> list[list[float]]:
    """Return how long each worker waits before each task of its list, and behind the last one.

    Nothing comes before what runs on another stream, or together with the task before it.  A period
    is one between others; behind a finite schedule's last task a worker waits for the others'.
    """
    endless = schedule.is_endless
    some = schedule.take(3 * len(schedule.batch_stops)) if endless else schedule
    times = slots(some)
    end = max(float(each[:, 1].max(initial=0)) for each in times)
    second, found = {other for _, other in some.overlaps}, []
    for tasks, each in zip(some.workers, times, strict=True):
        idle, before = [0.0] * (len(tasks) + 1), 0.0
        for n, task in enumerate(tasks):
            if not task.op.stream:
                begin, after = each[n].tolist()
                idle[n], before = 0.0 if task in second else begin - before, after
        idle[-1] = end - before
        size = len(tasks) // 3
        found.append(idle[size : 2 * size + 1] if endless else idle)
    return found
