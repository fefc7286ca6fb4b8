"""Pipeline methods as tables of tasks: built, drawn, checked and lowered to what workers run."""

from pipekit.schedules.boundaries import Boundary, boundaries, older_versions, steps_after
from pipekit.schedules.check import Report, check
from pipekit.schedules.errors import ScheduleError
from pipekit.schedules.lower import (
    MAIN,
    Message,
    Skips,
    Step,
    loss_versions,
    lower,
    slot_count,
)
from pipekit.schedules.methods.asp import asp
from pipekit.schedules.methods.flush import flush
from pipekit.schedules.methods.gpipe import gpipe
from pipekit.schedules.methods.inference import inference
from pipekit.schedules.methods.interleaved import interleaved
from pipekit.schedules.methods.model_parallel import model_parallel
from pipekit.schedules.methods.pipedream import optimal_in_flight, pipedream
from pipekit.schedules.methods.replicate import replicate
from pipekit.schedules.methods.two_bw import two_bw
from pipekit.schedules.ops import ADDING, OPS, PASSES, RECEIVERS, SENDERS, Op, OpRule, Payload
from pipekit.schedules.schedule import Schedule, parse, read_csv
from pipekit.schedules.sums import Sum, sum_order, sums
from pipekit.schedules.task import Task
from pipekit.schedules.text import draw
from pipekit.schedules.time_slots import slots

__all__ = [
    "ADDING",
    "MAIN",
    "OPS",
    "PASSES",
    "RECEIVERS",
    "SENDERS",
    "Boundary",
    "Message",
    "Op",
    "OpRule",
    "Payload",
    "Report",
    "Schedule",
    "ScheduleError",
    "Skips",
    "Step",
    "Sum",
    "Task",
    "asp",
    "boundaries",
    "check",
    "draw",
    "flush",
    "gpipe",
    "inference",
    "interleaved",
    "loss_versions",
    "lower",
    "model_parallel",
    "older_versions",
    "optimal_in_flight",
    "parse",
    "pipedream",
    "read_csv",
    "replicate",
    "slot_count",
    "slots",
    "steps_after",
    "sum_order",
    "sums",
    "two_bw",
]
