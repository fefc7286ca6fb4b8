"""Schedules as users meet them: a table that draws itself, and is written and read."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from pipekit.host.memory import not_collected
from pipekit.schedules.formats import csv, text, torch_csv
from pipekit.schedules.ops import Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task, require_tasks
from pipekit.units import plural

Pass = tuple[Op, int, int]
"""An op, the stage, and the microbatch of the batch."""


@dataclass(frozen=True, repr=False)
class Schedule(Table):
    """For every worker, the ordered list of its tasks: a head, and a period that repeats.

    The lists are known before training starts: these policies are static (PipeDream, section 3.3).
    After its head a worker runs its period again and again, each time for later microbatches and
    weight versions.  A schedule with an empty period is finite.

    Attributes:
        head: ``head[w]`` are the first tasks of worker ``w``, in the order it runs them.
        name: the method's name, for titles only.
        stashing: whether a microbatch's forward and backward must read the same weight version
            (PipeDream, section 3.4); False declares that they may differ.
        batch_size: microbatches that each batch of the data is split into; None: as many as each
            update sums.  A stage on several workers may sum several batches.
        overlaps: forwards and backwards that are meant to run together, each pair side by side in a
            worker's list (DeepSeek-V3 Technical Report, section 3.2.1).  How long that takes is the
            simulation's to say; engines may run them one after the other.
        period: ``period[w]`` are the tasks of worker ``w`` that follow its head and repeat.
        chunks: parts of its sequence into which each microbatch is cut; in the tasks each counts as
            a microbatch, those of one behind one another.
    """

    @classmethod
    @not_collected()
    def one_batch(
        cls,
        name: str,
        workers: Iterable[Iterable[Pass]],
        overlaps: Collection[tuple[Pass, Pass]] = (),
    ) -> "Schedule":
        """Return the finite schedule of one batch: passes on version 0, followed by the updates.

        A worker makes the updates of its stages in the order in which their gradients are complete.

        Args:
            name: the method's.
            workers: of each, the passes in their order: (op, stage, microbatch).
            overlaps: pairs of a forward and a backward that run together.

        Raises:
            ScheduleError: one of them is no (op, stage, microbatch).
        """
        given = [[*passes] for passes in workers]
        try:
            lists = [[Task(*each, 0) for each in passes] for passes in given]
            last = max((task.microbatch for task in chain(*lists)), default=0)
            for tasks in lists:
                complete = {stage: n for n, (op, stage, *_) in enumerate(tasks) if op.adds_gradient}
                for stage in sorted(complete, key=complete.__getitem__):
                    tasks.append(Task(Op.UPDATE, stage, last, 1))
        except (TypeError, AttributeError):
            require_tasks(given, version=False)
            raise
        pairs = frozenset((Task(*one, 0), Task(*other, 0)) for one, other in overlaps)
        return cls(tuple(map(tuple, lists)), name, overlaps=pairs)

    def to_csv(self, path: str | os.PathLike[str] | None = None, batches: int | None = None) -> str:
        """Return the table as CSV, one row a task, and write it to a given ``path``.

        ``batches`` says how many; None: as many as fill the pipeline (:meth:`excerpt`).
        """
        return _written(csv.write(self.excerpt(batches)), path, newline=None)

    def to_torch_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as torch.distributed.pipelining's CSV, and write it to a given ``path``.

        It is what ``_PipelineScheduleRuntime._load_csv`` reads (``compute_only``): passes without
        updates.

        Raises:
            ScheduleError: torch has no such tables: more than one batch or weight version, or a
                stage on several workers; the message says what to use.
        """
        one = self.take(1) if self.is_endless and self.is_closed else self
        return _written(torch_csv.write(one), path, newline="")

    @classmethod
    def from_torch_csv(cls, source: str | os.PathLike[str], name: str = "torch") -> "Schedule":
        """Read one batch of torch.distributed.pipelining, as ``_dump_csv`` writes it.

        The ``source`` is a file's path, or the CSV text itself, with line breaks; ``name`` is the
        schedule's.

        Raises:
            ScheduleError: a cell is not a pass, and the message gives its line; or it is not text.
            OSError: there is no such file, or it cannot be opened.
        """
        return cls.one_batch(name, *torch_csv.read(text_of(source)))

    def __str__(self) -> str:
        return text.draw(self)

    def __repr__(self) -> str:
        counts = f"{plural(self.worker_count, 'worker')}, {plural(self.stages, 'stage')}"
        length = "no end" if self.period else plural(self.microbatches, "microbatch", "es")
        return f"<Schedule {self.title}: {counts}, {length}>"


def parse(picture: str) -> Schedule:
    """Read a picture; only the order within each row counts, not the idle slots.

    Raises:
        ScheduleError: a row or a cell cannot be read; the message gives the line and the cell.
    """
    return Schedule(**vars(text.read(picture)))


def read_csv(source: str | os.PathLike[str]) -> Schedule:
    """Read back what :meth:`Schedule.to_csv` wrote, as a file or as a text with line breaks.

    Raises:
        ScheduleError: a column is missing or a row is not a task; the message gives the row.
        OSError: there is no such file, or it cannot be opened.
    """
    return Schedule(**vars(csv.read(text_of(source))))


def text_of(source: str | os.PathLike[str]) -> str:
    """Return what stands in a file, or the text itself."""
    written = str(source)
    if "\n" in written:
        return written
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ScheduleError(f"the CSV cannot be read: {source} is not text: {error}") from None


def _written(written: str, path: str | os.PathLike[str] | None, newline: str | None) -> str:
    if path is not None:
        with open(path, "w", encoding="utf-8", newline=newline) as file:
            file.write(written)
    return written


# --- The beginning of a schedule without end: enough of it to see how it goes on ------------------


def periods_under_way(schedule: Schedule) -> int:
    """Return within how many periods' microbatches the head and the first period lie."""
    return schedule.last_microbatch // schedule.period_microbatches + 1


def beginning(schedule: Schedule, periods: int) -> Schedule:
    """Return a finite schedule whose lists begin with the head and so many whole periods."""
    if not schedule.period:
        return schedule

    def cut() -> Schedule:
        size = schedule.period_microbatches
        return schedule.before((periods_under_way(schedule) + periods) * size)

    return schedule.remembered(("beginning", periods), cut)


def starts(schedule: Schedule, worker: int, periods: int) -> list[int]:
    """Return where in a worker's list each of so many periods begins, and where the last ends."""
    head, period = len(schedule.head[worker]), len(schedule.period[worker])
    return [head + number * period for number in range(periods + 1)]
