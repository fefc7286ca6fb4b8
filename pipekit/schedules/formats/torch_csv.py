"""Tables as torch.distributed.pipelining writes and reads them: a line a rank, a cell a pass.

``2F0`` is the forward of microbatch 0 on stage 2; ``B``, ``I`` and ``W`` are backwards as here, and
``(2F5;3B1)OVERLAP_F_B`` passes that run together.  An empty cell idles.  The file is one batch,
without weight versions and updates (``compute_only``).  Messages (``compute_comms``) are left out,
since they follow from the passes, and so is ``REDUCE_GRAD`` where an update sums the gradients
anyway.  Of sharded weights ``UNSHARD``, ``RESHARD`` and ``REDUCE_GRAD`` are tasks.
"""

import csv
import io
import re
from collections.abc import Sequence
from itertools import chain

from pipekit.host.user_frames import warn
from pipekit.schedules.ops import PASSES, Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task
from pipekit.schedules.transfers import DISCARD, GATHER, SUM

Pass = tuple[Op, int, int]
_PASS = re.compile(rf"(\d{{1,9}})([{''.join(op.letter for op in PASSES)}])(\d{{1,9}})$")
_OF_STAGES = GATHER, DISCARD, SUM
"""What is done once for all microbatches of a stage; torch's name for each is ours."""
_OF_STAGE = re.compile(rf"(\d{{1,9}})({'|'.join(op.name for op in _OF_STAGES)})$")
_MESSAGE = re.compile(r"\d+((WAIT_)?SEND_[FB]|RECV_[FB]|WAIT_[A-Z_]+)\d*$")
"""What torch adds to a table itself, and follows from the others."""
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
                    f"place of chimera, and torch's data parallelism in place of replicate"
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
    if schedule.chunks > 1:
        lost.append(f"chunks={schedule.chunks}")
    if lost:
        said = ", ".join(lost)
        warn(
            f"torch's tables have no place for {said}: after from_torch_csv call "
            f"dataclasses.replace(schedule, {said})"
        )
    return lines.getvalue()


def read(text: str) -> tuple[list[list[Pass]], list[tuple[Pass, Pass]]]:
    """Return each worker's passes, and those that run together (`.Schedule.from_torch_csv`)."""
    workers: list[list[Pass]] = []
    overlaps: list[tuple[Pass, Pass]] = []
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ScheduleError(f"the CSV cannot be read: {error}") from None
    for number, row in enumerate(rows, start=1):
        passes: list[Pass] = []
        for column, cell in enumerate(row, start=1):
            both = _OVERLAP.match(cell.strip())
            written = [part.strip() for part in (both.groups() if both else [cell])]
            found = [
                _read(part, number, column) for part in written if part and not _MESSAGE.match(part)
            ]
            if both and len(found) == 2:
                overlaps.append((found[0], found[1]))
            passes += found
        workers.append(_with_microbatches(passes))
    if not any(op in PASSES for op, *_ in chain(*workers)):
        raise ScheduleError(
            "the CSV has no pass: torch writes one line for each rank, e.g. 0F0,0F1,0B0"
        )
    if all(map(_sums_by_updates, workers)):
        workers = [[each for each in passes if each[0] is not SUM] for passes in workers]
    return workers, overlaps


def _with_microbatches(passes: Sequence[Pass]) -> list[Pass]:
    """Give gathers the microbatch of their stage's next pass, and the others that of its last."""
    found = [*passes]
    places = range(len(passes))
    for order, ops in ((places, (DISCARD, SUM)), (reversed(places), (GATHER,))):
        nearest: dict[int, int] = {}
        for n in order:
            op, stage, k = passes[n]
            if op in ops:
                found[n] = op, stage, nearest.get(stage, 0)
            elif op in PASSES:
                nearest[stage] = k
    return found


def _sums_by_updates(passes: Sequence[Pass]) -> bool:
    """Return whether sums of gradients are where updates make them, and no weights are sharded."""
    summed = set()
    for op, stage, _ in passes:
        if op in (GATHER, DISCARD) or (op.adds_gradient and stage in summed):
            return False
        if op is SUM:
            summed.add(stage)
    return True


def _cell(task: Task) -> str:
    if task.op in _OF_STAGES:
        return f"{task.stage}{task.op.name}"
    if task.op in PASSES:
        return f"{task.stage}{task.op.letter}{task.microbatch}"
    raise ScheduleError(
        f"torch's tables have no cell for {task}, {task.op.name}: use a method without it"
    )


def _read(cell: str, line: int, column: int) -> Pass:
    if found := _OF_STAGE.match(cell):
        return Op.named(found[2]), int(found[1]), 0
    found = _PASS.match(cell)
    if not found:
        raise ScheduleError(
            f"line {line}, cell {column}: {cell!r} is not a pass such as 2F0, 2B0, 2I0 or 2W0, two "
            f"such as (2F1;2B0)OVERLAP_F_B, nor 2UNSHARD, 2RESHARD, 2REDUCE_GRAD or a message"
        )
    return Op.lettered(found[2]), int(found[1]), int(found[3])


def _require_one_batch(schedule: Table) -> None:
    for task in chain(*schedule.workers):
        if task.version > (0 if task.op.is_pass else 1):
            raise ScheduleError(
                f"{task} is of weight version {task.version}, and torch's tables are one batch on "
                f"one version: make the schedule for one batch, by a method that flushes"
            )
    for task in chain(*schedule.workers):
        if not task.op.is_pass and task.microbatch < schedule.microbatches - 1:
            raise ScheduleError(
                f"{task} leaves out later microbatches, and torch's tables have one update, behind "
                f"them all: make the schedule for one batch, by a method that flushes"
            )
