"""Schedules as CSV: one row a task, after a line with what the columns do not say."""

import io
import re

import pandas as pd

from pipekit.schedules.ops import Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task

_HEADER = re.compile(
    r"# ?(.*); ([0-9]{1,6}) workers; stashing (on|off)(?:; batches of ([1-9][0-9]{0,8}))?"
    r"(?:; ([1-9][0-9]{0,8}) chunks a microbatch)?\s"
)
_COLUMNS = ["worker", "op", "stage", "microbatch", "version"]
_OVERLAPS = "overlaps"
"""A column of tables that have any: 1 for a task that runs together with the next, else 0."""


def write(schedule: Table) -> str:
    """Return a table as CSV; see :meth:`pipekit.schedules.Schedule.to_csv`."""
    rows = [
        (w, task.op.name, *task[1:]) for w, tasks in enumerate(schedule.workers) for task in tasks
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    if schedule.overlaps:
        firsts = {one for one, _ in schedule.overlaps}
        each = (task for tasks in schedule.workers for task in tasks)
        frame[_OVERLAPS] = [int(task in firsts) for task in each]
    header = f"# {schedule.title}; {len(schedule.workers)} workers; "
    header += f"stashing {'on' if schedule.stashing else 'off'}"
    header += f"; batches of {schedule.batch_size}" if schedule.batch_size else ""
    header += f"; {schedule.chunks} chunks a microbatch" if schedule.chunks > 1 else ""
    text: str = header + "\n" + frame.to_csv(index=False)
    return text


def read(text: str) -> Table:
    """Read what :func:`write` wrote; see :func:`pipekit.schedules.read_csv`."""
    try:
        frame = pd.read_csv(
            io.StringIO(text), comment="#", dtype=str, keep_default_na=False, skipinitialspace=True
        )
    except ValueError as error:  # pandas' own errors
        raise ScheduleError(f"the CSV cannot be read: {error}") from None
    missing = [column for column in _COLUMNS if column not in frame.columns]
    if missing:
        raise ScheduleError(
            f"the CSV lacks the column {missing[0]!r}; it needs {_COLUMNS} (a table of torch's is "
            f"read by Schedule.from_torch_csv and by pipekit check)"
        )
    header = _HEADER.match(text)
    name, stashing = (header[1], header[3] == "on") if header else ("schedule", True)
    batch_size = int(header[4]) if header and header[4] else None
    chunks = int(header[5]) if header and header[5] else 1
    # Without a header, every worker has a task.
    each = range(int(header[2]) if header else frame["worker"].nunique())
    lists: list[list[Task]] = [[] for _ in each]
    firsts: list[tuple[int, int]] = []  # of tasks that run together: worker and position
    if _OVERLAPS not in frame.columns:
        frame[_OVERLAPS] = "0"
    rows = frame[[*_COLUMNS, _OVERLAPS]].itertuples(index=False, name=None)
    for number, (*cells, overlaps) in enumerate(rows, start=1):
        worker, op, *rest = cells
        row = ",".join(cells)
        try:
            stage, microbatch, version = map(int, rest)
            task, w = Task(Op.named(op), stage, microbatch, version), each.index(int(worker))
            is_first = bool(int(overlaps))
        except (KeyError, ValueError) as error:
            hint = "; import an op of your own first" if isinstance(error, KeyError) else ""
            raise ScheduleError(
                f"row {number} of the CSV is not a task of worker 0 to {len(each) - 1}: {row}{hint}"
            ) from None
        if is_first:
            firsts.append((w, len(lists[w])))
        lists[w].append(task)
    for w, position in firsts:
        if position + 1 == len(lists[w]):
            raise ScheduleError(
                f"the last task of worker {w} in the CSV, {lists[w][-1]}, runs together with the "
                f"next, and there is none"
            )
    pairs = frozenset((lists[w][i], lists[w][i + 1]) for w, i in firsts)
    return Table(tuple(map(tuple, lists)), name, stashing, batch_size, pairs, chunks=chunks)
