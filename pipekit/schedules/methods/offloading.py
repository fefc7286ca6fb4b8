"""Activations that lie elsewhere between forward and backward: with a partner, or on the host."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from pipekit.schedules.methods.flushed import flushed, inserted
from pipekit.schedules.methods.looped import uniform
from pipekit.schedules.methods.one_f_one_b import flush, split_backwards
from pipekit.schedules.ops import ACTIVATIONS, PASSES, Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task, Tasks
from pipekit.schedules.transfers import LOAD, OFFLOAD

Place = tuple[int, int]
"""A stage and a microbatch, whose activations are offloaded."""


def bpipe(stages: int, microbatches: int) -> Schedule:
    """Return BPipe's schedule: 1F1B whose early workers keep activations with late ones.

    Worker ``w`` (from 0) of the first half evicts to worker ``p - 1 - w``, and loads from there in
    time, so that neither has more than ``ceil((p + 2) / 2)`` microbatches' activations, where
    1F1B's first worker has ``p`` (Kim et al., BPipe, ICML 2023).  The newest are evicted, which are
    needed last.  Of a pair one transfer is under way at a time if it takes no longer than a
    forward.  Each of the ``stages`` has a worker, each batch ``microbatches``.
    """

    def more(tasks: Tasks, second: Collection[Task]) -> Iterator[tuple[int, Task]]:
        worker, backwards = tasks[0].stage, _backwards(tasks)
        room, most = (stages + 3) // 2, min(stages - worker, len(backwards))
        # Beside those that stay there is room for one on its way, and for that of a forward.  When
        # the first backward is due, the last forward's stay, too: the partner has no room for them.
        candidates = range(room - 2, len(backwards) if most > room else 0)
        evicted = [(worker, k) for k in candidates if k != most - 1]
        return _moved(
            tasks, second, dict(zip(evicted, backwards, strict=False)), stages - 1 - worker
        )

    return inserted(flush(stages, microbatches), more, "BPipe")


def pipe_offload(
    stages: int, microbatches: int, *, workers: int, offloaded_stages: int | None = None
) -> Schedule:
    """Return PipeOffload's schedule: interleaved evenly in time, with activations on the host.

    Each worker's first stages offload, which wait longest for their backwards (Wan et al., ICML
    2025, arXiv 2503.01328, sections 2 and 3.2).  With half of ``v`` stages offloaded a worker of
    ``p`` keeps about ``p (v + 2) / 8`` passes' activations, and four passes' with all of them; GIS
    keeps ``p v``.  The ``workers`` have two or more of the ``stages`` each, of which
    ``offloaded_stages`` offload, by default half, rounded up (PO-H; all is PO-F); each batch has
    ``microbatches``.

    Raises:
        ScheduleError: a count is below 1, or the stages cannot be shared so.
    """
    each = [[*split_backwards(own, 0)] for own in uniform(stages, microbatches, workers)]
    mine = stages // workers
    count = -(-mine // 2) if offloaded_stages is None else offloaded_stages
    if not 0 <= count <= mine:
        raise ScheduleError(f"offloaded_stages must be from 0 to a worker's {mine}, not {count}")
    made = offloaded(flushed("PipeOffload", each), range(count * workers))
    return replace(made, name="PipeOffload")


def offloaded(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Return a ``schedule`` that flushes with some ``stages``' activations on the host meanwhile.

    They go right behind the forward, and come back when the last backward but one before theirs is
    over; what would hardly be away stays, and so does what other tasks than passes use or move.  A
    worker's first stages save most: they wait longest.

    Raises:
        ScheduleError: the batches do not end with a flush, or there is no such stage.
    """

    def more(tasks: Tasks, second: Collection[Task]) -> Iterator[tuple[int, Task]]:
        forwards, backwards = _forwards(tasks), _backwards(tasks)
        others = (task for task in tasks if task.op not in PASSES)
        used = {each[1:3] for each in others if ACTIVATIONS in (*each.op.needs, *each.op.takes)}
        loads: dict[Place, int] = {}
        for before, n in zip(backwards, backwards[2:], strict=False):
            place = tasks[n][1:3]
            if place[0] in stages and place not in used and before - forwards[place] > 2:
                loads[place] = before
        return _moved(tasks, second, loads)

    return inserted(schedule, more, f"{schedule.name}, offloading", stages)


def _forwards(tasks: Tasks) -> dict[Place, int]:
    return {task[1:3]: n for n, task in enumerate(tasks) if task.op is Op.FORWARD}


def _backwards(tasks: Tasks) -> list[int]:  # that use activations up
    return [n for n, (op, *_) in enumerate(tasks) if op in PASSES and ACTIVATIONS in op.takes]


def _moved(
    tasks: Tasks, second: Collection[Task], loads: Mapping[Place, int], peer: int | None = None
) -> Iterator[tuple[int, Task]]:
    """Yield transfers of activations, away behind their forward and back behind ``loads``' tasks.

    They go to the ``peer``, or the host.  No transfer parts tasks that run together.
    """
    away, back = (OFFLOAD, LOAD) if peer is None else (OFFLOAD.to(peer), LOAD.to(peer))
    forwards = _forwards(tasks)
    moves = {forwards[place]: (away, place) for place in loads}
    moves |= {n: (back, place) for place, n in loads.items()}
    for n, (op, place) in sorted(moves.items()):
        together = any(task in second for task in tasks[n + 1 : n + 2])
        yield n + 1 + together, tasks[forwards[place]]._replace(op=op)
