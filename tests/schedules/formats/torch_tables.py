"""The schedules of torch.distributed.pipelining, as it generates them itself."""

import csv
import io
import logging
import re
from typing import Any

from torch import nn
from torch.distributed.pipelining import schedules as theirs


class _Stage:
    """What torch asks of a stage before any step: its place."""

    def __init__(self, index: int, stages: int, rank: int, ranks: int) -> None:
        self.stage_index, self.num_stages = index, stages
        self.group_rank, self.group_size = rank, ranks
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.submod, self.device, self.group = nn.Identity(), "cpu", None
        self.has_backward = False
        self.stage_index_to_group_rank: dict[int, int] = {}


NAMES = {
    "gpipe": theirs.ScheduleGPipe,
    "1f1b": theirs.Schedule1F1B,
    "interleaved": theirs.ScheduleInterleaved1F1B,
    "looped_bfs": theirs.ScheduleLoopedBFS,
    "interleaved_zero_bubble": theirs.ScheduleInterleavedZeroBubble,
    "zb_v": theirs.ScheduleZBVZeroBubble,
    "dualpipe_v": theirs.ScheduleDualPipeV,
}


def generated(name: str, ranks: int, stages: int, microbatches: int) -> str:
    """Return the CSV of a schedule that torch generates, as its ``_dump_csv`` writes it."""
    logging.getLogger(theirs.__name__).setLevel(logging.ERROR)
    made: Any = NAMES[name]
    own = [_Stage(s, stages, 0, ranks) for s in range(0, stages, ranks)][: stages // ranks]
    if issubclass(made, theirs.PipelineScheduleSingle):
        order = made(own[0], microbatches)._get_pipeline_order()
    else:
        order = made(own, microbatches, loss_fn=lambda *_: None).pipeline_order
    return written(order)


def corrected(text: str) -> str:
    """Return torch's table of 1F1B with its last rank's forwards numbered from 0.

    Torch 2.15 numbers them from 1 (``Schedule1F1B._get_pipeline_order``); what it runs is right,
    since its 1F1B goes by a loop of its own.
    """
    *rows, last = text.replace("\r", "").split()
    stage = len(rows)
    if f"{stage}F0" not in last.split(","):
        last = re.sub(rf"\b{stage}F(\d+)", lambda f: f"{stage}F{int(f[1]) - 1}", last)
    return "\r\n".join([*rows, last, ""])


def written(order: Any) -> str:
    lines = io.StringIO()
    for rank in sorted(order):
        csv.writer(lines).writerow(order[rank])
    return lines.getvalue()


def validated(text: str, ranks: int, stages: int, microbatches: int) -> dict[int, int]:
    """Have torch read and validate a table; return on which rank it has each stage."""
    order = {
        rank: [theirs._Action.from_str(cell) for cell in row]
        for rank, row in enumerate(csv.reader(io.StringIO(text)))
    }
    found: dict[int, int] = theirs._validate_schedule(order, ranks, stages, microbatches)
    return found


def sharded_by_torch(text: str, microbatches: int, gathered: int) -> str:
    """Return a table of passes with what torch's runtime adds for sharded weights."""
    order: dict[int, Any] = {}
    for rank, row in enumerate(csv.reader(io.StringIO(text))):
        passes: Any = [theirs._Action.from_str(cell) for cell in row if "REDUCE" not in cell]
        with_gathers: Any = theirs._add_unshard_reshard(passes, gathered)
        order[rank] = theirs._add_reduce_grad(with_gathers, microbatches)
    return written(order)


LOOPS = ("interleaved", "looped_bfs", "interleaved_zero_bubble")


def torchs(name: str, p: int, m: int) -> tuple[str, int, int]:
    """A table of torch's, its stages and its microbatches, of which some take only certain ones."""
    stages = p if name in ("gpipe", "1f1b") else 2 * p
    m = {"1f1b": p + m, "dualpipe_v": 2 * p + m}.get(name, m)
    if name in LOOPS:
        m *= p
    text = generated(name, p, stages, m)
    return corrected(text) if name == "1f1b" else text, stages, m
