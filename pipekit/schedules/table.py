"""What a schedule is made of, for the files that the class Schedule itself stands on."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.task import Task
from pipekit.units import bytes_text

MOST = 20_000_000
"""Microbatches of all stages of the largest table: each takes two tasks or more, some 300 bytes."""


def require_room(counts: str, passes: int) -> None:
    """Raise ScheduleError if a table would fit no memory.

    Args:
        counts: what it is to have, as the message says it.
        passes: each way, of all stages.
    """
    if passes > MOST:
        raise ScheduleError(
            f"{counts} are {passes:,} passes each way, some {bytes_text(300 * passes)} to write "
            f"out, and {MOST:,} are the most: run fewer batches at a time"
        )


class Contents(NamedTuple):
    """The arguments of :class:`pipekit.schedules.Schedule`, in their order, as read from text."""

    head: tuple[tuple[Task, ...], ...]
    name: str = "schedule"
    stashing: bool = True
    batch_size: int | None = None
    overlaps: frozenset[tuple[Task, Task]] = frozenset()
    period: tuple[tuple[Task, ...], ...] = ()


class Table(Protocol):
    """What is replayed, drawn and written: a finite :class:`pipekit.schedules.Schedule`.

    Its attributes are described there.
    """

    @property
    def workers(self) -> tuple[Sequence[Task], ...]:
        """Every worker's tasks."""

    @property
    def title(self) -> str:
        """The name on one line."""

    @property
    def stashing(self) -> bool:
        """Whether a microbatch's passes on a stage read the same weight version."""

    @property
    def batch_size(self) -> int | None:
        """Microbatches of a batch of the data, if that is not what an update sums."""

    @property
    def overlaps(self) -> frozenset[tuple[Task, Task]]:
        """Pairs of tasks that run together."""

    def excerpt(self, batches: int | None) -> "Table":
        """Return the finite part that is drawn."""

    @property
    def dependencies(self) -> Dependencies:
        """Which task needs which."""
