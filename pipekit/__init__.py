"""pipekit: pipeline-parallel training methods, drawn, simulated and run from one schedule."""

from pipekit import schedules
from pipekit.engine import Pipeline, Run, WorkerDied
from pipekit.schedules import Schedule, ScheduleError
from pipekit.traces import Trace

__all__ = ["Pipeline", "Run", "Schedule", "ScheduleError", "Trace", "WorkerDied", "schedules"]
