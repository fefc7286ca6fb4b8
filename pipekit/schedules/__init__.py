"""Pipeline methods as tables of tasks: built, drawn, checked and lowered to what workers run."""

from pipekit.schedules.check import Report, check
from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.formats.text import draw
from pipekit.schedules.lowering.lower import lower
from pipekit.schedules.lowering.steps import Message, Step, Steps
from pipekit.schedules.methods.asynchronous.asp import asp
from pipekit.schedules.methods.asynchronous.paci import paci
from pipekit.schedules.methods.asynchronous.pipedream import optimal_in_flight, pipedream
from pipekit.schedules.methods.asynchronous.two_bw import two_bw
from pipekit.schedules.methods.bidirectional.chimera import chimera
from pipekit.schedules.methods.bidirectional.dualpipe import dualpipe
from pipekit.schedules.methods.bidirectional.dualpipe_v import dualpipe_v
from pipekit.schedules.methods.eager import eager
from pipekit.schedules.methods.flush import flush
from pipekit.schedules.methods.gpipe import gpipe
from pipekit.schedules.methods.inference import inference
from pipekit.schedules.methods.looped.hanayo import hanayo
from pipekit.schedules.methods.looped.interleaved import interleaved
from pipekit.schedules.methods.looped.looped_bfs import looped_bfs
from pipekit.schedules.methods.model_parallel import model_parallel
from pipekit.schedules.methods.replicate import replicate
from pipekit.schedules.methods.zero_bubble.interleaved_zero_bubble import interleaved_zero_bubble
from pipekit.schedules.methods.zero_bubble.v_half import v_half
from pipekit.schedules.methods.zero_bubble.v_min import v_min
from pipekit.schedules.methods.zero_bubble.zb_h1 import zb_h1
from pipekit.schedules.methods.zero_bubble.zb_h2 import zb_h2
from pipekit.schedules.methods.zero_bubble.zb_v import zb_v
from pipekit.schedules.ops import OPS, Op, OpRule, Payload
from pipekit.schedules.schedule import Schedule, parse, read_csv
from pipekit.schedules.task import Task
from pipekit.schedules.time_slots import slots

__all__ = [
    "OPS",
    "Message",
    "Op",
    "OpRule",
    "Payload",
    "Report",
    "Schedule",
    "ScheduleError",
    "Step",
    "Steps",
    "Task",
    "asp",
    "check",
    "chimera",
    "draw",
    "dualpipe",
    "dualpipe_v",
    "eager",
    "flush",
    "gpipe",
    "hanayo",
    "inference",
    "interleaved",
    "interleaved_zero_bubble",
    "looped_bfs",
    "lower",
    "model_parallel",
    "optimal_in_flight",
    "paci",
    "parse",
    "pipedream",
    "read_csv",
    "replicate",
    "slots",
    "two_bw",
    "v_half",
    "v_min",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
