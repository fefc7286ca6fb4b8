"""Pipeline methods as tables of tasks: built, drawn, checked and lowered to what workers run."""

from pipekit.schedules.check import Report, check
from pipekit.schedules.flush import flush
from pipekit.schedules.gpipe import gpipe
from pipekit.schedules.inference import inference
from pipekit.schedules.lower import Step, buffer_count, lower
from pipekit.schedules.model_parallel import model_parallel
from pipekit.schedules.picture import draw, parse
from pipekit.schedules.pipedream import pipedream
from pipekit.schedules.replicate import replicate
from pipekit.schedules.schedule import Schedule, ScheduleError, read_csv
from pipekit.schedules.slots import slots
from pipekit.schedules.task import Op, Task
from pipekit.schedules.two_bw import two_bw

__all__ = [
    "Op",
    "Report",
    "Schedule",
    "ScheduleError",
    "Step",
    "Task",
    "buffer_count",
    "check",
    "draw",
    "flush",
    "gpipe",
    "inference",
    "lower",
    "model_parallel",
    "parse",
    "pipedream",
    "read_csv",
    "replicate",
    "slots",
    "two_bw",
]
