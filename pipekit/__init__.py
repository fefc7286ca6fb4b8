"""pipekit: pipeline-parallel training methods, drawn, simulated and run from one schedule."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipekit import datasets, models, plots, schedules
    from pipekit.batch_norm import DeferredBatchNorm, convert_batch_norm
    from pipekit.engine import Pipeline, PipelinedModule, Run, WorkerDied, emulate, measure_memory
    from pipekit.loss_scale import LossScale
    from pipekit.memory import Memory
    from pipekit.pass_state import is_checkpointing, is_recomputing
    from pipekit.planning import plan
    from pipekit.plans import Plan
    from pipekit.profiling import Profile
    from pipekit.profiling.measured import profile
    from pipekit.reproduction import claims
    from pipekit.schedules import Schedule, ScheduleError
    from pipekit.simulation.simulate import simulate
    from pipekit.traces import Trace

__all__ = [
    "DeferredBatchNorm",
    "LossScale",
    "Memory",
    "Pipeline",
    "PipelinedModule",
    "Plan",
    "Profile",
    "Run",
    "Schedule",
    "ScheduleError",
    "Trace",
    "WorkerDied",
    "claims",
    "convert_batch_norm",
    "datasets",
    "emulate",
    "is_checkpointing",
    "is_recomputing",
    "measure_memory",
    "models",
    "plan",
    "plots",
    "profile",
    "schedules",
    "simulate",
]

_HOMES = {
    "claims": "reproduction",
    "DeferredBatchNorm": "batch_norm",
    "convert_batch_norm": "batch_norm",
    "Pipeline": "engine",
    "PipelinedModule": "engine",
    "Profile": "profiling",
    "profile": "profiling.measured",
    "Run": "engine",
    "WorkerDied": "engine",
    "emulate": "engine",
    "LossScale": "loss_scale",
    "measure_memory": "engine",
    "Memory": "memory",
    "is_checkpointing": "pass_state",
    "is_recomputing": "pass_state",
    "Plan": "plans",
    "plan": "planning",
    "Schedule": "schedules",
    "ScheduleError": "schedules",
    "Trace": "traces",
    "simulate": "simulation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, drawing needs none of it."""
    if name in _HOMES:
        return getattr(import_module(f"pipekit.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"pipekit.{name}")
    raise AttributeError(f"module 'pipekit' has no attribute {name!r}")
