"""Which ops the engine runs: passes, updates, recomputation at a place, and moved activations."""

from pipekit.schedules import Op, Schedule, ScheduleError
from pipekit.schedules.ops import ACTIVATIONS, OFFLOADED, PASSES

COMPUTED = (*PASSES, Op.UPDATE, Op.RECOMPUTE)
"""What a stage computes."""


def offloads(op: Op) -> bool:
    """Return whether an op moves activations to the host, or to a partner."""
    return op.takes == (ACTIVATIONS,) and op.gives == (OFFLOADED,)


def loads(op: Op) -> bool:
    """Return whether an op brings them back from there."""
    return op.takes == (OFFLOADED,) and op.gives == (ACTIVATIONS,)


def require_runnable(schedule: Schedule, runner: str = "Pipeline", trains: bool = True) -> None:
    """Raise ScheduleError for what cannot be run; it can be drawn, checked and simulated.

    Args:
        schedule: the table.
        runner: what is to run it, for the message.
        trains: whether that computes: what only waits moves no activations and has no sequences.
    """
    for number, tasks in enumerate((*schedule.head, *schedule.period)):
        for task in tasks:
            op, worker = task.op, number % schedule.worker_count
            if op not in COMPUTED and not (trains and (offloads(op) or loads(op))):
                raise ScheduleError(
                    f"worker {worker} has {task} ({op.name}), which {runner} cannot run: draw, "
                    f"check and simulate the schedule, or leave its {op.letter} out",
                    [(task, worker)],
                )
    is_split = Op.BACKWARD_INPUT in schedule.ops
    if schedule.chunks > 1 and (is_split or not trains):
        how = "with backwards in two parts, " if is_split else ""
        raise ScheduleError(
            f"{schedule.title} cuts each microbatch into {schedule.chunks} chunks of its sequence, "
            f"{how}which {runner} cannot run: draw, check and simulate it, or use chunks=1"
        )
