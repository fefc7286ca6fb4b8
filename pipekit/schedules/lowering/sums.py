"""What updates sum where a stage is on several workers, and in which order the sums are made."""

from collections import Counter
from typing import NamedTuple

from pipekit.schedules.ops import OPS
from pipekit.schedules.replay import order
from pipekit.schedules.schedule import Schedule


class Sum(NamedTuple):
    """What an update sums, where its stage is on several workers.

    Attributes:
        contributors: the workers that add a gradient for it, in their order.
        batches: how many batches its microbatches are from.
    """

    contributors: tuple[int, ...]
    batches: int


def sums(schedule: Schedule) -> tuple[tuple[Sum, ...], ...]:
    """Return what each update of each stage sums: update ``i + 1`` of stage ``s`` is [s][i]."""
    if schedule.period:
        return tuple(stage * schedule.times for stage in sums(schedule.period))
    graph, batch_of = schedule.dependencies, schedule.batch_of
    return tuple(
        tuple(
            Sum(
                tuple(sorted({graph.worker_of[graph.adders[stage][k]] for k in summed})),
                1 + batch_of[summed[-1]] - batch_of[summed[0]],
            )
            for summed in updates
        )
        for stage, updates in enumerate(schedule.updates)
    )


def sum_order(schedule: Schedule, joint_updates: bool = False) -> tuple[tuple[int, int], ...]:
    """Return the sums over several workers, as (stage, update), in an order for all of them.

    A worker makes the sums of its stages one after another.  They come here in the order in which
    a replay of the table completes their gradients, those of a stage in the order of its updates.
    If all workers keep to it, none waits for another in a circle: a task that waits for a sum comes
    later in the replay than all gradients of that sum and of those before it.

    Args:
        schedule: a table that :func:`pipekit.schedules.check` has accepted.
        joint_updates: whether updates wait for one another, as in
            :func:`pipekit.schedules.replay.replay`.

    Raises:
        ScheduleError: the workers would wait for one another for ever.
    """
    shared = {stage for stage, workers in enumerate(schedule.stage_workers) if len(workers) > 1}
    if not shared:
        return ()
    if schedule.period:
        first = sum_order(schedule.period, joint_updates)
        counts = [*map(len, schedule.period.updates)]
        times = range(schedule.times)
        return tuple((s, update + time * counts[s]) for time in times for s, update in first)
    graph = schedule.dependencies
    left = [Counter(stage) for stage in graph.update_of]  # gradients to come, by update
    made = dict.fromkeys(shared, 0)
    found: list[tuple[int, int]] = []
    for number in order(graph, joint_updates=joint_updates):
        op, stage, microbatch, _ = graph.tasks[number]
        if not OPS[op].adds_gradient or stage not in shared:
            continue
        left[stage][graph.update_of[stage][microbatch]] -= 1
        while made[stage] < len(graph.updates[stage]) and not left[stage][made[stage] + 1]:
            made[stage] += 1
            found.append((stage, made[stage]))
    return tuple(found)
