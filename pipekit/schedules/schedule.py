"""A pipeline method, written out: who does what, in which order, on which weights."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.formats import csv, text, torch_csv
from pipekit.schedules.ops import OPS
from pipekit.schedules.repeated import Repeated, distinct
from pipekit.schedules.task import Task


@dataclass(frozen=True)
class Schedule:
    """For every worker, the ordered tuple of its tasks.

    The table is complete before training starts: these policies are static, so that each worker
    follows its own list without coordination (PipeDream, section 3.3).

    Attributes:
        workers: ``workers[w]`` are the tasks of worker ``w``, in the order it runs them: a tuple,
            or a :class:`pipekit.schedules.repeated.Repeated`, which is equal to one.
        name: the method's name, for titles only.
        stashing: whether a microbatch's forward and backward must read the same weight version
            (PipeDream, section 3.4); False declares that they may differ.
        batch_size: microbatches that each batch of the data is split into; None: as many as each
            update sums.  A stage on several workers may sum several batches.
        overlaps: forwards and backwards that are meant to run together, each pair side by side in a
            worker's list (DeepSeek-V3 Technical Report, section 3.2.1).  What they take then is the
            simulation's to say; engines may run them one after the other.
    """

    workers: tuple[Sequence[Task], ...]
    name: str = field(default="schedule", compare=False)
    stashing: bool = True
    batch_size: int | None = None
    overlaps: frozenset[tuple[Task, Task]] = frozenset()

    @cached_property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return 1 + max((task.stage for task in self._distinct()), default=-1)

    @cached_property
    def microbatches(self) -> int:
        """How many microbatches pass through in the whole run."""
        if self.period:
            return self.times * self.period.microbatches
        return 1 + max((task.microbatch for tasks in self.workers for task in tasks), default=-1)

    @cached_property
    def period(self) -> "Schedule | None":
        """The schedule that this one repeats, each time for later microbatches and versions.

        A repetition has all passes of its microbatches, and none of them reads a version of an
        earlier one but the last.  So what is true of the period is true of each repetition, and if
        the period can be executed, so can they one behind the other, which is one of the orders in
        which workers that wait for nothing but their data can run them; all others end alike (see
        :mod:`pipekit.schedules.replay`).

        None, if nothing is repeated, or repetitions are not so.
        """
        workers = [tasks for tasks in self.workers if isinstance(tasks, Repeated)]
        if len(workers) != len(self.workers) or not workers:
            return None
        first = workers[0]
        size, versions = first.microbatches, first.versions
        overlaps = frozenset(pair for pair in self.overlaps if pair[0].microbatch < size)
        period = replace(self, workers=tuple(tasks.unit for tasks in workers), overlaps=overlaps)
        try:
            whole = all(len(stage) == versions for stage in period.updates)
        except ScheduleError:  # it is to speak of the whole
            return None
        whole &= period.microbatches == size and size % (self.batch_size or size) == 0
        whole &= all(first.like(tasks.unit) == tasks for tasks in workers)
        whole &= self.overlaps == {
            (one.later(time * size, time * versions), other.later(time * size, time * versions))
            for one, other in overlaps
            for time in range(first.times)
        }
        return period if whole else None

    @property
    def times(self) -> int:
        """How often :attr:`period` comes; 1, if there is none."""
        tasks = self.workers[0] if self.period else ()
        return tasks.times if isinstance(tasks, Repeated) else 1

    @cached_property
    def dependencies(self) -> Dependencies:
        """Which task needs which.

        Raises:
            ScheduleError: a pass stands in the table twice, or a backward both whole and in parts;
                something counts from below 0, or up to more than so few tasks can be; or tasks
                cannot run together.
        """
        return Dependencies(self.workers, self.stages, self.microbatches, self.overlaps)

    @cached_property
    def updates(self) -> tuple[tuple[range, ...], ...]:
        """For each stage, the microbatches that each of its updates sums.

        Update ``i + 1`` of stage ``s`` sums ``updates[s][i]``.
        """
        if not self.period:
            return self.dependencies.updates
        size = self.period.microbatches
        return tuple(
            tuple(
                range(summed.start + first, summed.stop + first)
                for first in range(0, self.microbatches, size)
                for summed in stage
            )
            for stage in self.period.updates
        )

    @property
    def update_of(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, which update sums each microbatch, from 1.

        Those after a stage's last update have the number of the one that is missing.
        """
        return self.dependencies.update_of

    @cached_property
    def batches(self) -> tuple[range, ...]:
        """The microbatches of each batch of the data.

        Without updates (inference) every microbatch is a batch of its own; microbatches after the
        last update are a batch that lacks its own.
        """
        end = self.microbatches
        if self.batch_size:
            stops = [*range(self.batch_size, end, self.batch_size), end]
        elif any(self.updates):
            stops = sorted({summed.stop for stage in self.updates for summed in stage} | {end})
        else:
            stops = list(range(1, end + 1))
        return tuple(map(range, [0, *stops[:-1]], stops))

    @cached_property
    def batch_of(self) -> tuple[int, ...]:
        """The batch of each microbatch."""
        return tuple(number for number, batch in enumerate(self.batches) for _ in batch)

    @cached_property
    def stage_workers(self) -> tuple[tuple[int, ...], ...]:
        """The workers that have each stage."""
        found: list[list[int]] = [[] for _ in range(self.stages)]
        for worker, tasks in enumerate(self.workers):
            for stage in {task.stage for task in distinct(tasks)}:
                found[stage].append(worker)
        return tuple(map(tuple, found))

    @cached_property
    def reports(self) -> dict[tuple[int | None, bool], Any]:
        """What :func:`pipekit.schedules.check` has returned, by its other arguments."""
        return {}

    @property
    def title(self) -> str:
        """The name on one line."""
        return " ".join(self.name.split())

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward pass: without one, the schedule is inference."""
        return any(OPS[task.op].own for task in self._distinct())

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as CSV, one row a task, and write it to ``path`` if one is given."""
        written = csv.write(self)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(written)
        return written

    def to_torch_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as torch.distributed.pipelining's CSV, and write it to a given ``path``.

        It is what ``_PipelineScheduleRuntime._load_csv`` reads (``compute_only``): passes without
        updates, since torch leaves these to the training loop.

        Raises:
            ScheduleError: torch has no such tables: more than one batch or weight version, or a
                stage on several workers; the message says what to use.
        """
        written = torch_csv.write(self)
        if path is not None:
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(written)
        return written

    @classmethod
    def from_torch_csv(
        cls, source: str | os.PathLike[str], batches: int = 1, name: str = "torch"
    ) -> "Schedule":
        """Read a schedule of torch.distributed.pipelining, as its ``_dump_csv`` writes it.

        Every microbatch of batch ``t`` reads version ``t``, and the updates follow each batch.

        Args:
            source: a file's path, or the CSV text itself (recognised by its line breaks).
            batches: how many batches, one after the other.
            name: the schedule's.

        Raises:
            ScheduleError: a cell is no pass, and the message gives its line; or it is no text.
            OSError: there is no such file, or it cannot be opened.
        """
        written = str(source)
        if "\n" not in written:
            try:
                with open(source, encoding="utf-8", newline="") as file:
                    written = file.read()
            except UnicodeDecodeError as error:
                raise ScheduleError(f"{source} is no text: {error}") from None
        return cls(*torch_csv.read(written, batches, name))

    def __str__(self) -> str:
        return text.draw(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what the table says itself: the rest follows from it, and is large."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __repr__(self) -> str:
        return (
            f"<Schedule {self.name}: {len(self.workers)} workers, {self.stages} stages, "
            f"{self.microbatches} microbatches>"
        )

    def _distinct(self) -> Iterator[Task]:
        return (task for tasks in self.workers for task in distinct(tasks))


def parse(picture: str) -> Schedule:
    """Read a picture; only the order within each row counts, not the idle slots.

    Raises:
        ScheduleError: a row or a cell cannot be read; the message gives the line and the cell.
    """
    return Schedule(*text.read(picture))


def read_csv(source: str | os.PathLike[str]) -> Schedule:
    """Read back what :meth:`Schedule.to_csv` wrote.

    Args:
        source: a file's path, or the CSV text itself (recognised by its line breaks).

    Raises:
        ScheduleError: a column is missing or a row is not a task; the message gives the row.
        OSError: there is no such file, or it cannot be opened.
    """
    return Schedule(*csv.read(source))
