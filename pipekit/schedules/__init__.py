"""Pipeline methods as tables of tasks: built, drawn, checked and lowered to what workers run."""

from pipekit.schedules.check import Report, check
from pipekit.schedules.formats.text import draw
from pipekit.schedules.lowering.lower import lower
from pipekit.schedules.lowering.steps import Message, Step, Steps
from pipekit.schedules.methods.bubbles import filled, pipefisher, recomputed
from pipekit.schedules.methods.flushed import flushed
from pipekit.schedules.methods.gpipe import gpipe, inference, model_parallel
from pipekit.schedules.methods.looped import (
    gis,
    gis_h,
    hanayo,
    interleaved,
    interleaved_zero_bubble,
    looped_bfs,
)
from pipekit.schedules.methods.offloading import bpipe, offloaded, pipe_offload
from pipekit.schedules.methods.one_f_one_b import (
    alternate,
    eager,
    flush,
    seq1f1b,
    terapipe,
    zb_h1,
    zb_h2,
)
from pipekit.schedules.methods.pipedream import asp, optimal_in_flight, paci, pipedream
from pipekit.schedules.methods.replicate import replicate
from pipekit.schedules.methods.two_bw import two_bw
from pipekit.schedules.methods.two_directions import chimera, dualpipe, dualpipe_v
from pipekit.schedules.methods.v_shaped import v_half, v_min, zb_v
from pipekit.schedules.methods.weights import sharded, sharded_bfs, weipipe
from pipekit.schedules.ops import OPS, Item, Op, Payload
from pipekit.schedules.replay import slots
from pipekit.schedules.schedule import Schedule, parse, read_csv
from pipekit.schedules.task import ScheduleError, Task
from pipekit.schedules.transfers import DISCARD, GATHER, LOAD, OFFLOAD, SUM

__all__ = [
    "DISCARD",
    "GATHER",
    "LOAD",
    "OFFLOAD",
    "OPS",
    "SUM",
    "Item",
    "Message",
    "Op",
    "Payload",
    "Report",
    "Schedule",
    "ScheduleError",
    "Step",
    "Steps",
    "Task",
    "alternate",
    "asp",
    "bpipe",
    "check",
    "chimera",
    "draw",
    "dualpipe",
    "dualpipe_v",
    "eager",
    "filled",
    "flush",
    "flushed",
    "gis",
    "gis_h",
    "gpipe",
    "hanayo",
    "inference",
    "interleaved",
    "interleaved_zero_bubble",
    "looped_bfs",
    "lower",
    "model_parallel",
    "offloaded",
    "optimal_in_flight",
    "paci",
    "parse",
    "pipe_offload",
    "pipedream",
    "pipefisher",
    "read_csv",
    "recomputed",
    "replicate",
    "seq1f1b",
    "sharded",
    "sharded_bfs",
    "slots",
    "terapipe",
    "two_bw",
    "v_half",
    "v_min",
    "weipipe",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
