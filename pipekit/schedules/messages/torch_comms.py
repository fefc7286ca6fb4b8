"""Programs as torch.distributed.pipelining writes them (``compute_comms``): a cell an action.

``0SEND_F3`` sends the output of stage 0 for microbatch 3, ``1RECV_F3`` receives it for stage 1, and
``B`` is the gradient that comes back; passes are as in :mod:`pipekit.schedules.formats.torch_csv`.
"""

import csv
import io
import os
import re

from pipekit.schedules.formats import torch_csv
from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.messages.program import Group, MessageProgram, Transfer, TransferKind, alone
from pipekit.schedules.ops import Payload
from pipekit.schedules.schedule import Schedule, text_of
from pipekit.schedules.task import ScheduleError

_TRANSFER = re.compile(r"(\d{1,9})(SEND|RECV)_([FB])(\d{1,9})$")
_PASS = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_WAYS = {"SEND": TransferKind.SEND, "RECV": TransferKind.RECEIVE}
_PAYLOADS = {"F": Payload.ACTIVATION, "B": Payload.GRADIENT}


def read_torch_comms(source: str | os.PathLike[str]) -> MessageProgram:
    """Read torch's table with its sends and receives: a file's path, or a text with line breaks.

    Raises:
        ScheduleError: a cell is neither a pass nor a message, or a message is of a stage that no
            rank has.
        OSError: there is no such file, or it cannot be opened.
    """
    text = text_of(source)
    lists, overlaps = torch_csv.read(text)
    schedule = Schedule.one_batch("torch", lists, overlaps)
    ranks = {stage: workers[0] for stage, workers in enumerate(schedule.stage_workers)}
    workers: list[list[Group]] = []
    for tasks, row in zip(schedule.workers, csv.reader(io.StringIO(text)), strict=False):
        waiting = [*tasks]
        groups: list[Group] = []
        for cell in row:
            if found := _TRANSFER.match(cell.strip()):
                stage, way, payload = int(found[1]), _WAYS[found[2]], _PAYLOADS[found[3]]
                peer = stage + payload.step if way is TransferKind.SEND else stage - payload.step
                if peer not in ranks:
                    raise ScheduleError(
                        f"{found[0]!r} is a message of stage {peer}, which no rank has"
                    )
                receiver = peer if way is TransferKind.SEND else stage
                message = Message(payload, receiver, int(found[4]))
                groups.append((Transfer(way, message, ranks[peer]),))
            elif waiting and cell.strip() == f"{waiting[0].stage}{waiting[0].op.name}":
                groups.append((waiting.pop(0),))  # of sharded weights
            else:
                groups += alone(waiting.pop(0) for _ in _PASS.findall(cell))
        workers.append(groups + alone(waiting))
    return MessageProgram(schedule, tuple(map(tuple, workers)), "of the file")


def write_torch_comms(program: MessageProgram) -> str:
    """Return a program as torch's CSV, without updates, which torch leaves to the training loop.

    Raises:
        ScheduleError: torch has no such tables: groups of transfers, or weight versions; or a stage
            is on several workers.
    """
    table, lines = program.table, io.StringIO()
    seconds = {second for _, second in table.overlaps}  # in the cell of the pass that they run with
    rows = csv.reader(io.StringIO(torch_csv.write(table)))
    for worker, (groups, row) in enumerate(zip(program.workers, rows, strict=True)):
        passes, cells = iter(row), []
        for group in groups:
            if len(group) > 1:
                raise ScheduleError(
                    f"worker {worker} calls {' and '.join(map(str, group))} as one group, and "
                    f"torch's tables have no cell for groups: repair(program, channel) may find an "
                    f"order without any"
                )
            (action,) = group
            if isinstance(action, Transfer):
                payload, receiver, microbatch, *_ = action.message
                sends = action.way is TransferKind.SEND
                here = receiver - payload.step if sends else receiver
                letter = "F" if payload is Payload.ACTIVATION else "B"
                cells.append(f"{here}{'SEND' if sends else 'RECV'}_{letter}{microbatch}")
            elif action.op.is_pass and action not in seconds:
                cells.append(next(passes))
        csv.writer(lines).writerow(cells)
    return lines.getvalue()
