"""Tables as torch.distributed.pipelining writes and reads them: a line a rank, a cell a pass.

``2F0`` is the forward of microbatch 0 on stage 2; ``B``, ``I`` and ``W`` are backwards as here, and
``(2F5;3B1)OVERLAP_F_B`` a forward and a backward that run together.  An empty cell idles.  The file
is one batch, with neither weight versions nor updates: torch calls it ``compute_only``.  Of files
with messages (``compute_comms``) only the passes are read, since the rest follows from them.
"""

import csv
import io
import re
from collections.abc import Iterable
from itertools import chain

from pipekit.schedules.ops import OPS, PASSES, Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task

Pass = tuple[Op, int, int]
_PASS = re.compile(rf"(\d{{1,9}})([{''.join(op.value for op in PASSES)}])(\d{{1,9}})$")
_ADDED = re.compile(r"\d+(UNSHARD|RESHARD|(WAIT_)?REDUCE_GRAD|(WAIT_)?SEND_[FB]|RECV_[FB])\d*$")
"""What torch adds to a table itself."""
_OVERLAP = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B$")


def write(schedule: Table) -> str:
    """Return a table as CSV; see :meth:`pipekit.schedules.Schedule.to_torch_csv`."""
    _require_one_batch(schedule)
    home: dict[int, int] = {}
    partner = dict(schedule.overlaps)
    lines = io.StringIO()
    for worker, tasks in enumerate(schedule.workers):
        cells, overlapped = [], None
        for task in tasks:
            other = home.setdefault(task.stage, worker)
            if other != worker:
                raise ScheduleError(
                    f"stage {task.stage} is on workers {other} and {worker}, and torch has a stage "
                    f"on one rank only: use dualpipe_v in place of dualpipe, zb_v or hanayo in "
                    f"place of chimera, and torch's data parallelism in place of replicate",
                    [(task, worker)],
                )
            if overlapped:
                cells.append(f"({_cell(overlapped)};{_cell(task)})OVERLAP_F_B")
                overlapped = None
            elif task in partner:
                overlapped = task
            elif OPS[task.op].is_pass:
                cells.append(_cell(task))
        csv.writer(lines).writerow(cells)
    return lines.getvalue()


def read(text: str) -> tuple[list[list[Pass]], list[tuple[Pass, Pass]]]:
    """Return each worker's passes, and those that run together (`.Schedule.from_torch_csv`)."""
    workers: list[list[Pass]] = []
    overlaps: list[tuple[Pass, Pass]] = []
    for number, row in enumerate(_rows(text), start=1):
        passes: list[Pass] = []
        for column, cell in enumerate(row, start=1):
            both = _OVERLAP.match(cell.strip())
            written = both.groups() if both else [cell]
            found = [
                _read(part.strip(), number, column)
                for part in written
                if part.strip() and not _ADDED.match(part.strip())
            ]
            if both and len(found) == 2:
                overlaps.append((found[0], found[1]))
            passes += found
        workers.append(passes)
    if not any(workers):
        raise ScheduleError(
            "the CSV has no pass: torch writes one line for each rank, e.g. 0F0,0F1,0B0"
        )
    return workers, overlaps


def _rows(text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ScheduleError(f"the CSV cannot be read: {error}") from None


def _cell(task: Task) -> str:
    return f"{task.stage}{task.op.value}{task.microbatch}"


def _read(cell: str, line: int, column: int) -> Pass:
    found = _PASS.match(cell)
    if not found:
        raise ScheduleError(
            f"line {line}, cell {column}: {cell!r} is no pass such as 2F0, 2B0, 2I0 or 2W0, two of "
            f"them such as (2F1;2B0)OVERLAP_F_B, nor a message of torch's",
            line=line,
            column=column,
        )
    return Op(found[2]), int(found[1]), int(found[3])


def _require_one_batch(schedule: Table) -> None:
    """Raise ScheduleError unless a table is one batch on one version of the weights."""
    tasks: Iterable[Task] = chain(*schedule.workers)
    for task in tasks:
        if task.version > (0 if OPS[task.op].is_pass else 1):
            raise ScheduleError(
                f"{task} is of weight version {task.version}, and torch's tables are one batch on "
                f"one version: make the schedule for one batch, by a method that flushes",
                [(task, None)],
            )
