"""pipekit: pipeline-parallel training methods, drawn, simulated and run from one schedule."""

from typing import TYPE_CHECKING, Any

from pipekit.extras import imported

if TYPE_CHECKING:
    from pipekit import (
        clusters,
        datasets,
        emulation,
        explore,
        measured,
        models,
        oracle,
        planning,
        plots,
        profiling,
        schedules,
        searching,
        simulation,
        staleness,
        traces,
    )
    from pipekit.emulation.emulate import emulate
    from pipekit.engine import (
        Checkpoints,
        Execution,
        Pipeline,
        PipelinedModule,
        Run,
        Stalled,
        Updates,
        Watch,
        WorkerDied,
        measure_memory,
    )
    from pipekit.host.user_frames import PipekitWarning
    from pipekit.layers import skips
    from pipekit.layers.batch_norm import DeferredBatchNorm, convert_batch_norm
    from pipekit.layers.pass_state import is_checkpointing, is_recomputing
    from pipekit.ledger import claims
    from pipekit.losses.losses import LossScale, MeanOver
    from pipekit.measured import explain, read_trace
    from pipekit.partition.stages import stages
    from pipekit.performance.recommend import recommend
    from pipekit.planning import plan
    from pipekit.plans import Plan
    from pipekit.profiling import Profile
    from pipekit.profiling.measured import profile
    from pipekit.schedules import Schedule, ScheduleError
    from pipekit.searching.search import search
    from pipekit.simulation.simulate import simulate
    from pipekit.torch_pipelining import torch_runtime
    from pipekit.traces import Memory, Trace

_CONTENTS = {
    "emulation": "emulate",
    "engine": "Checkpoints Execution Pipeline PipelinedModule Run Stalled Updates Watch WorkerDied "
    "measure_memory",
    "host.user_frames": "PipekitWarning",
    "layers.batch_norm": "DeferredBatchNorm convert_batch_norm",
    "layers.pass_state": "is_checkpointing is_recomputing",
    "losses.losses": "LossScale MeanOver",
    "measured": "explain read_trace",
    "partition.stages": "stages",
    "performance.recommend": "recommend",
    "planning": "plan",
    "plans": "Plan",
    "profiling": "Profile",
    "profiling.measured": "profile",
    "schedules": "Schedule ScheduleError",
    "searching": "search",
    "simulation": "simulate",
    "torch_pipelining": "torch_runtime",
    "traces": "Memory Trace",
}
_HOMES = {name: module for module, names in _CONTENTS.items() for name in names.split()}
"""The module of each function and class."""

__all__ = [
    "Checkpoints",
    "DeferredBatchNorm",
    "Execution",
    "LossScale",
    "MeanOver",
    "Memory",
    "PipekitWarning",
    "Pipeline",
    "PipelinedModule",
    "Plan",
    "Profile",
    "Run",
    "Schedule",
    "ScheduleError",
    "Stalled",
    "Trace",
    "Updates",
    "Watch",
    "WorkerDied",
    "claims",
    "clusters",
    "convert_batch_norm",
    "datasets",
    "emulate",
    "emulation",
    "explain",
    "explore",
    "is_checkpointing",
    "is_recomputing",
    "measure_memory",
    "measured",
    "models",
    "oracle",
    "plan",
    "planning",
    "plots",
    "profile",
    "profiling",
    "read_trace",
    "recommend",
    "schedules",
    "search",
    "searching",
    "simulate",
    "simulation",
    "skips",
    "stages",
    "staleness",
    "torch_runtime",
    "traces",
]

_MODULES = {name: name for name in __all__ if name not in _HOMES}
_MODULES |= {"claims": "ledger.claims", "skips": "layers.skips"}
"""Likewise of each module."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, drawing needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'pipekit' has no attribute {name!r}")
    if name in _HOMES:
        return getattr(imported(f"pipekit.{_HOMES[name]}"), name)
    return imported(f"pipekit.{_MODULES[name]}")


def __dir__() -> list[str]:
    """Return the public names: notebooks complete those, too, that nobody has used yet."""
    return __all__
