"""A pipeline method, written out: who does what, in which order, on which weights."""

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, starmap

import pandas as pd

from pipekit.schedules.ops import Op
from pipekit.schedules.task import Task

_HEADER = re.compile(
    r"# ?(.*); ([0-9]{1,6}) workers; stashing (on|off)(?:; batches of ([1-9][0-9]{0,8}))?\s"
)
COLUMNS = ["worker", "op", "stage", "microbatch", "version"]


class ScheduleError(ValueError):
    """A schedule that cannot be built, read or executed; the message names the tasks at fault."""


@dataclass(frozen=True)
class Schedule:
    """For every worker, the ordered tuple of its tasks.

    The table is complete before training starts: these policies are static, so that each worker
    follows its own list without coordination (PipeDream, section 3.3).

    Attributes:
        workers: ``workers[w]`` are the tasks of worker ``w``, in the order it runs them.
        name: the method's name, for titles only.
        stashing: whether a microbatch's forward and backward must read the same weight version
            (PipeDream, section 3.4); False declares that they may differ.
        batch_size: microbatches that each batch of the data is split into; None: as many as each
            update sums.  A stage on several workers may sum several batches.
    """

    workers: tuple[tuple[Task, ...], ...]
    name: str = field(default="schedule", compare=False)
    stashing: bool = True
    batch_size: int | None = None

    @cached_property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return 1 + max((task.stage for task in self._all()), default=-1)

    @cached_property
    def microbatches(self) -> int:
        """How many microbatches pass through in the whole run."""
        return 1 + max((task.microbatch for task in self._all()), default=-1)

    @cached_property
    def updates(self) -> tuple[tuple[range, ...], ...]:
        """For each stage, the microbatches that each of its updates sums.

        Update ``i + 1`` of stage ``s`` sums ``updates[s][i]``.
        """
        ends: list[set[int]] = [{0} for _ in range(self.stages)]
        for task in self._all():
            if task.op is Op.UPDATE:
                ends[task.stage].add(task.microbatch + 1)
        return tuple(tuple(starmap(range, pairwise(sorted(each)))) for each in ends)

    @cached_property
    def update_of(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, which update sums each microbatch, from 1.

        Those after a stage's last update have the number of the one that is missing.
        """
        numbers = []
        for stage in self.updates:
            summed = [number for number, each in enumerate(stage, start=1) for _ in each]
            numbers.append((*summed, *[len(stage) + 1] * (self.microbatches - len(summed))))
        return tuple(numbers)

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
            for stage in {task.stage for task in tasks}:
                found[stage].append(worker)
        return tuple(map(tuple, found))

    @property
    def title(self) -> str:
        """The name on one line."""
        return " ".join(self.name.split())

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward pass: without one, the schedule is inference."""
        return any(task.op is Op.BACKWARD for task in self._all())

    def stage_of(self, worker: int) -> int:
        """Return the stage that a worker begins with (its only one, in the papers' methods)."""
        tasks = self.workers[worker]
        return tasks[0].stage if tasks else worker

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as CSV, one row a task, and write it to ``path`` if one is given."""
        rows = [
            (w, task.op.name, *task[1:]) for w, tasks in enumerate(self.workers) for task in tasks
        ]
        header = f"# {self.title}; {len(self.workers)} workers; stashing {_on(self.stashing)}"
        header += f"; batches of {self.batch_size}\n" if self.batch_size else "\n"
        text: str = header + pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    def __str__(self) -> str:
        from pipekit.schedules.text import draw

        return draw(self)

    def __repr__(self) -> str:
        return (
            f"<Schedule {self.name}: {len(self.workers)} workers, {self.stages} stages, "
            f"{self.microbatches} microbatches>"
        )

    def _all(self) -> Iterator[Task]:
        return (task for tasks in self.workers for task in tasks)


def read_csv(source: str | os.PathLike[str]) -> Schedule:
    """Read back what :meth:`Schedule.to_csv` wrote.

    Args:
        source: a file's path, or the CSV text itself (recognised by its line breaks).

    Raises:
        ScheduleError: a column is missing or a row is not a task; the message gives the row.
        OSError: there is no such file, or it cannot be opened.
    """
    try:
        text = str(source)
        if "\n" not in text:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        frame = pd.read_csv(io.StringIO(text), comment="#", dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' own errors, and what is not UTF-8
        raise ScheduleError(f"the CSV cannot be read: {error}") from None
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise ScheduleError(f"the CSV lacks the column {missing[0]!r}; it needs {COLUMNS}")
    header = _HEADER.match(text)
    name, stashing = (header[1], header[3] == "on") if header else ("schedule", True)
    batch_size = int(header[4]) if header and header[4] else None
    # Without a header, every worker has a task.
    count = int(header[2]) if header else frame["worker"].nunique()
    lists: list[list[Task]] = [[] for _ in range(count)]
    for number, (worker, op, *rest) in enumerate(
        frame[COLUMNS].itertuples(index=False, name=None), start=1
    ):
        row = ",".join([worker, op, *rest])
        try:
            stage, microbatch, version = map(int, rest)
            task, w = Task(Op[op], stage, microbatch, version), int(worker)
        except (KeyError, ValueError):
            raise ScheduleError(f"row {number} of the CSV is not a task: {row}") from None
        if w not in range(count):
            raise ScheduleError(
                f"row {number} of the CSV is not a task of worker 0 to {count - 1}: {row}"
            )
        lists[w].append(task)
    return Schedule(tuple(map(tuple, lists)), name, stashing, batch_size)


def _on(flag: bool) -> str:
    return "on" if flag else "off"
