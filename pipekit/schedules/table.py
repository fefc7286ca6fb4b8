"""What a schedule is made of, for the files that the class Schedule itself stands on."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.task import Task


class Contents(NamedTuple):
    """The arguments of :class:`pipekit.schedules.Schedule`, in their order, as read from text."""

    workers: tuple[Sequence[Task], ...]
    name: str = "schedule"
    stashing: bool = True
    batch_size: int | None = None
    overlaps: frozenset[tuple[Task, Task]] = frozenset()


class Table(Protocol):
    """What is replayed, drawn and written: a :class:`pipekit.schedules.Schedule`.

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

    @property
    def dependencies(self) -> Dependencies:
        """Which task needs which."""
