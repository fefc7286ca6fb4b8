"""One entry of a worker's list, and the error that names such entries."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any, NamedTuple

from pipekit.schedules.ops import Op
from pipekit.units import bytes_text


class Task(NamedTuple):
    """One entry of a worker's list.

    A pass (any op but UPDATE) reads weight ``version`` for ``microbatch``.  An UPDATE produces
    ``version``; its ``microbatch`` is the last whose gradient it sums (as in PipeDream-2BW's
    Figure 2).

    Attributes:
        op: what it does.
        stage: whose layers; stages, microbatches and versions all count from 0.
        microbatch: over the whole run.
        version: of the stage's weights.
    """

    op: Op
    stage: int
    microbatch: int
    version: int

    @property
    def label(self) -> str:
        """The letter of the op, with the microbatch of a pass or the version that is made."""
        number = self.microbatch if self.op.is_pass else self.version
        return f"{self.op.letter}{number}{self.op.at_peer}"

    def numbered(self, chunks: int) -> str:
        """Return its microbatch's number, and its chunk's if there are several, as in a picture."""
        whole, chunk = divmod(self.microbatch, chunks)
        return f"{whole}.{chunk}" if chunks > 1 else f"{whole}"

    def __str__(self) -> str:
        return f"{self.label} of stage {self.stage}"


Tasks = tuple[Task, ...]
"""Those of a worker, in its order."""

MOST = 20_000_000
"""Microbatches of all stages of the largest table: each takes two tasks or more, some 300 bytes."""


class ScheduleError(ValueError):
    """A schedule that cannot be built, read or executed; the message names the tasks at fault."""


def require_tasks(workers: Iterable[Iterable[Any]], version: bool = True) -> None:
    """Raise ScheduleError for the first entry of workers' lists that is not a task.

    Without a ``version`` entries are passes.
    """
    form = Task._fields if version else Task._fields[:3]
    for worker, entries in enumerate(workers):
        for each in entries:
            whole = isinstance(each, tuple) and all(isinstance(n, Integral) for n in each[1:])
            if not whole or len(each) != len(form) or not isinstance(each[0], Op):
                raise ScheduleError(
                    f"worker {worker} has {each!r}, which is not ({', '.join(form)}): an op, such "
                    f"as Op.FORWARD, and whole numbers"
                )


def require_room(counts: str, passes: int) -> None:
    """Raise ScheduleError if a table would fit no memory."""
    if passes > MOST:
        raise ScheduleError(
            f"{counts} are {passes:,} passes each way, some {bytes_text(300 * passes)} to write "
            f"out, and {MOST:,} are the most: run fewer batches at a time"
        )
