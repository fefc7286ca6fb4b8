"""What updates sum where a stage is on several workers, and in which order the sums are made."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.replay import Replay
from pipekit.schedules.schedule import Schedule, beginning, periods_under_way
from pipekit.schedules.task import ScheduleError

T = TypeVar("T")
Turn = tuple[int, int]
"""A sum over several workers: the stage and the update."""


class Sum(NamedTuple):
    """What an update sums, where its stage is on several workers."""

    contributors: tuple[int, ...]  # the workers that add a gradient for it, in their order
    batches: int  # how many batches its microbatches are from
    end: int  # the microbatch behind these


def of_updates(
    schedule: Schedule,
    find: Callable[[Schedule], Sequence[Sequence[T]]],
    later: Callable[[T, int], T],
) -> tuple[Recurring[T], ...]:
    """Return something of each update of each stage; ``find`` gives it for a finite schedule."""
    some = find(beginning(schedule, 1))
    if not schedule.period:
        return tuple(Recurring(tuple(found)) for found in some)
    settled = periods_under_way(schedule)
    return tuple(
        Recurring(tuple(found[: settled * made]), tuple(found[settled * made :][:made]), later)
        for found, made in zip(some, schedule.period_versions, strict=True)
    )


def sums(schedule: Schedule) -> tuple[Recurring[Sum], ...]:
    """Return what each update of each stage sums: update ``i + 1`` of stage ``s`` is [s][i]."""

    def found(some: Schedule) -> list[list[Sum]]:
        graph, batch_of = some.dependencies, some.batch_of
        return [
            [
                Sum(
                    tuple(sorted({graph.worker_of[graph.adders[stage][k]] for k in summed})),
                    1 + batch_of[summed[-1]] - batch_of[summed[0]],
                    summed.stop,
                )
                for summed in updates
            ]
            for stage, updates in enumerate(some.updates)
        ]

    size = schedule.period_microbatches if schedule.period else 0
    return of_updates(schedule, found, partial(_later_sum, size=size))


def _later_sum(summed: Sum, periods: int, *, size: int) -> Sum:
    return summed._replace(end=summed.end + periods * size)


def sum_order(schedule: Schedule, joint_updates: bool = False) -> Recurring[Turn]:
    """Return the sums over several workers, as (stage, update), in an order for all of them.

    They come in the order in which a replay of the table completes their gradients, those of a
    stage in the order of its updates.  If all workers keep to it, none waits for another in a
    circle: a task that waits for a sum comes later in the replay than all gradients of that sum and
    of those before it.
    """
    shared = {stage for stage, workers in enumerate(schedule.stage_workers) if len(workers) > 1}
    if not shared:
        return Recurring(())
    if not schedule.period:
        return Recurring(_sum_order(schedule, shared, joint_updates))
    made = schedule.period_versions
    later = partial(_later, made=made)
    settled = 0 if schedule.is_closed else periods_under_way(schedule)
    some = schedule.before(schedule.period_microbatches * (3 * settled + 1))
    found, each = _sum_order(some, shared, joint_updates), sum(made[stage] for stage in shared)
    begins = range(settled * each, (2 * settled + 1) * each, each)
    first, *others = (found[begin : begin + each] for begin in begins)
    if any([later(turn, n) for turn in first] != [*some] for n, some in enumerate(others, 1)):
        raise ScheduleError("the sums over several workers do not come in the same order each time")
    return Recurring(found[: begins[0]], first, later)


def _later(turn: Turn, periods: int, *, made: tuple[int, ...]) -> Turn:
    stage, update = turn
    return stage, update + periods * made[stage]


def _sum_order(schedule: Schedule, shared: set[int], joint_updates: bool) -> tuple[Turn, ...]:
    graph = schedule.dependencies
    left = [Counter(stage) for stage in graph.update_of]  # gradients to come, by update
    made = dict.fromkeys(shared, 0)
    found: list[tuple[int, int]] = []
    for number in Replay(graph, joint_updates=joint_updates).order():
        op, stage, microbatch, _ = graph.tasks[number]
        if not op.adds_gradient or stage not in shared:
            continue
        left[stage][graph.update_of[stage][microbatch]] -= 1
        while made[stage] < len(graph.updates[stage]) and not left[stage][made[stage] + 1]:
            made[stage] += 1
            found.append((stage, made[stage]))
    return tuple(found)
