"""The beginning of a schedule without end: enough of it to see how it goes on."""

from pipekit.schedules.schedule import Schedule


def periods_under_way(schedule: Schedule) -> int:
    """Return within how many periods' microbatches the head and the first period lie."""
    last = max(task.microbatch for tasks in (*schedule.head, *schedule.period) for task in tasks)
    return last // schedule.period_microbatches + 1


def beginning(schedule: Schedule, periods: int) -> Schedule:
    """Return a finite schedule whose lists begin with the head and so many whole periods."""

    def cut() -> Schedule:
        size = schedule.period_microbatches
        return schedule.before((periods_under_way(schedule) + periods) * size)

    return schedule.remembered(("beginning", periods), cut)


def starts(schedule: Schedule, worker: int, periods: int) -> list[int]:
    """Return where in a worker's list each of so many periods begins, and where the last ends."""
    head, period = len(schedule.head[worker]), len(schedule.period[worker])
    return [head + number * period for number in range(periods + 1)]
