"""Schedules as CSV: one row a task, after a line with what the columns do not say."""

import io
import os
import re

import pandas as pd

from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.ops import Op
from pipekit.schedules.table import Contents, Table
from pipekit.schedules.task import Task

_HEADER = re.compile(
    r"# ?(.*); ([0-9]{1,6}) workers; stashing (on|off)(?:; batches of ([1-9][0-9]{0,8}))?\s"
)
_COLUMNS = ["worker", "op", "stage", "microbatch", "version"]


def write(schedule: Table) -> str:
    """Return a table as CSV; see :meth:`pipekit.schedules.Schedule.to_csv`."""
    rows = [
        (w, task.op.name, *task[1:]) for w, tasks in enumerate(schedule.workers) for task in tasks
    ]
    header = f"# {schedule.title}; {len(schedule.workers)} workers; "
    header += f"stashing {'on' if schedule.stashing else 'off'}"
    header += f"; batches of {schedule.batch_size}\n" if schedule.batch_size else "\n"
    text: str = header + pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False)
    return text


def read(source: str | os.PathLike[str]) -> Contents:
    """Read what :func:`write` wrote; see :func:`pipekit.schedules.read_csv`."""
    try:
        text = str(source)
        if "\n" not in text:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        frame = pd.read_csv(io.StringIO(text), comment="#", dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' own errors, and what is not UTF-8
        raise ScheduleError(f"the CSV cannot be read: {error}") from None
    missing = [column for column in _COLUMNS if column not in frame.columns]
    if missing:
        raise ScheduleError(f"the CSV lacks the column {missing[0]!r}; it needs {_COLUMNS}")
    header = _HEADER.match(text)
    name, stashing = (header[1], header[3] == "on") if header else ("schedule", True)
    batch_size = int(header[4]) if header and header[4] else None
    # Without a header, every worker has a task.
    count = int(header[2]) if header else frame["worker"].nunique()
    lists: list[list[Task]] = [[] for _ in range(count)]
    for number, (worker, op, *rest) in enumerate(
        frame[_COLUMNS].itertuples(index=False, name=None), start=1
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
    return Contents(tuple(map(tuple, lists)), name, stashing, batch_size)
