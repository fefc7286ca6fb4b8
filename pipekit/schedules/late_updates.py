"""Updates as late as their readers allow, so that passes hide the sums that they wait for."""

from collections.abc import Iterable, Iterator

from pipekit.schedules.task import Op, Task


def late_updates(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield a worker's tasks, with each update right before the first one that reads its version.

    A version that nobody reads is made at the end.  No update passes the stage's next one: besides
    the sum of gradients that grows, a stage holds at most one more, which waits for its update.

    Args:
        tasks: one worker's list, whose updates come after the backwards that they sum.
    """
    waiting: dict[int, Task] = {}  # updates, by stage
    for task in tasks:
        update = waiting.get(task.stage)
        if update and task.version >= update.version:  # it reads this version, or makes the next
            yield waiting.pop(task.stage)
        if task.op is Op.UPDATE:
            waiting[task.stage] = task
        else:
            yield task
    yield from waiting.values()
