"""Tables as torch.distributed.pipelining writes and reads them: a line a rank, a cell a pass.

``2F0`` is the forward of microbatch 0 on stage 2; ``B``, ``I`` and ``W`` are backwards as here, and
``(2F5;3B1)OVERLAP_F_B`` a forward and a backward that run together.  An empty cell idles.  The file
is one batch, with neither weight versions nor updates: torch calls it ``compute_only``.  Of files
with messages (``compute_comms``) only the passes are read, since messages follow from them, and so
does ``REDUCE_GRAD`` behind a stage's last backward: there the gradients of an update are summed.  A
warning says if others are left out, or ``UNSHARD`` and ``RESHARD`` of sharded weights.
"""

import csv
import io
import re
import warnings
from collections.abc import Iterable
from itertools import chain

from pipekit.schedules.ops import PASSES, Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task

Pass = tuple[Op, int, int]
_PASS = re.compile(rf"(\d{{1,9}})([{''.join(op.letter for op in PASSES)}])(\d{{1,9}})$")
_MESSAGE = re.compile(r"\d+((WAIT_)?SEND_[FB]|RECV_[FB])\d*$")
"""What torch adds to a table itself, and follows from the passes."""
_SHARDING = re.compile(r"(\d{1,9})(?:WAIT_)?(UNSHARD|RESHARD|REDUCE_GRAD)\d*$")
"""What torch adds for weights that are sharded or replicated by data parallelism."""
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
            elif task.op.is_pass:
                cells.append(_cell(task))
        csv.writer(lines).writerow(cells)
    lost = [] if schedule.stashing else ["stashing=False"]
    if schedule.batch_size not in (None, schedule.microbatches):
        lost.append(f"batch_size={schedule.batch_size}")
    if lost:
        _say(
            f"torch's tables have no place for {_and(lost)}: after from_torch_csv call "
            f"dataclasses.replace(schedule, {', '.join(lost)})"
        )
    return lines.getvalue()


def read(text: str) -> tuple[list[list[Pass]], list[tuple[Pass, Pass]]]:
    """Return each worker's passes, and those that run together (`.Schedule.from_torch_csv`)."""
    workers: list[list[Pass]] = []
    overlaps: list[tuple[Pass, Pass]] = []
    left_out: set[str] = set()
    for number, row in enumerate(_rows(text), start=1):
        passes: list[Pass] = []
        added: list[tuple[str, int, int]] = []  # name, stage and how many passes are before it
        for column, cell in enumerate(row, start=1):
            both = _OVERLAP.match(cell.strip())
            written = [part.strip() for part in (both.groups() if both else [cell])]
            sharding = [each for each in map(_SHARDING.match, written) if each]
            added += [(each[2], int(each[1]), len(passes)) for each in sharding]
            found = [
                _read(part, number, column)
                for part in written
                if part and not _MESSAGE.match(part) and not _SHARDING.match(part)
            ]
            if both and len(found) == 2:
                overlaps.append((found[0], found[1]))
            passes += found
        left_out |= {
            name
            for name, stage, place in added
            if name != "REDUCE_GRAD"
            or any(op.adds_gradient and other == stage for op, other, _ in passes[place:])
        }
        workers.append(passes)
    if not any(workers):
        raise ScheduleError(
            "the CSV has no pass: torch writes one line for each rank, e.g. 0F0,0F1,0B0"
        )
    if left_out:
        _say(
            f"the CSV's cells of {_and(sorted(left_out))} are left out: a schedule has no tasks "
            f"for them, an update sums its gradients behind the last backward, and stages get "
            f"several workers by replicate(schedule, copies)"
        )
    return workers, overlaps


def _rows(text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ScheduleError(f"the CSV cannot be read: {error}") from None


def _cell(task: Task) -> str:
    return f"{task.stage}{task.op.letter}{task.microbatch}"


def _read(cell: str, line: int, column: int) -> Pass:
    found = _PASS.match(cell)
    if not found:
        raise ScheduleError(
            f"line {line}, cell {column}: {cell!r} is no pass such as 2F0, 2B0, 2I0 or 2W0, two of "
            f"them such as (2F1;2B0)OVERLAP_F_B, nor a message of torch's",
            line=line,
            column=column,
        )
    return Op.lettered(found[2]), int(found[1]), int(found[3])


def _say(sentence: str) -> None:
    """Warn whoever called a method of Schedule's."""
    warnings.warn(sentence, stacklevel=4)


def _and(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _require_one_batch(schedule: Table) -> None:
    """Raise ScheduleError unless a table is one batch on one version of the weights."""
    for task in chain(*schedule.workers):
        if task.version > (0 if task.op.is_pass else 1):
            raise ScheduleError(
                f"{task} is of weight version {task.version}, and torch's tables are one batch on "
                f"one version: make the schedule for one batch, by a method that flushes",
                [(task, None)],
            )
    for task in chain(*schedule.workers):
        if not task.op.is_pass and task.microbatch < schedule.microbatches - 1:
            raise ScheduleError(
                f"{task} leaves out later microbatches, and torch's tables have one update, behind "
                f"them all: make the schedule for one batch, by a method that flushes",
                [(task, None)],
            )
