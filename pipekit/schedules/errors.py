"""What is wrong with a schedule, and which tasks are at fault."""

from collections.abc import Iterable

from pipekit.schedules.task import Task


class ScheduleError(ValueError):
    """A schedule that cannot be built, read or executed; the message names the tasks at fault.

    Attributes:
        tasks: those that the message names, in its order; also those that are missing.
        workers: the worker that has each of these tasks, or None where it is missing or unknown.
        line: of the text that cannot be read, from 1; None if the error is not one of reading.
        column: of the cell in that line, from 1; None if it is the line as a whole.
    """

    def __init__(
        self,
        message: str,
        at_fault: Iterable[tuple[Task, int | None]] = (),
        *,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message)
        places = tuple(at_fault)
        self.tasks = tuple(task for task, _ in places)
        self.workers = tuple(worker for _, worker in places)
        self.line = line
        self.column = column
