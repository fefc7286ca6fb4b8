"""pipekit: pipeline-parallel training methods, drawn, simulated and run from one schedule."""

from typing import TYPE_CHECKING, Any

from pipekit.extras import imported

if TYPE_CHECKING:
    from pipekit import clusters as clusters
    from pipekit import datasets as datasets
    from pipekit import emulation as emulation
    from pipekit import explore as explore
    from pipekit import measured as measured
    from pipekit import models as models
    from pipekit import oracle as oracle
    from pipekit import planning as planning
    from pipekit import plots as plots
    from pipekit import profiling as profiling
    from pipekit import schedules as schedules
    from pipekit import searching as searching
    from pipekit import simulation as simulation
    from pipekit import staleness as staleness
    from pipekit import traces as traces
    from pipekit.emulation.emulate import emulate as emulate
    from pipekit.engine import Checkpoints as Checkpoints
    from pipekit.engine import Execution as Execution
    from pipekit.engine import Pipeline as Pipeline
    from pipekit.engine import PipelinedModule as PipelinedModule
    from pipekit.engine import Run as Run
    from pipekit.engine import Stalled as Stalled
    from pipekit.engine import Updates as Updates
    from pipekit.engine import Watch as Watch
    from pipekit.engine import WorkerDied as WorkerDied
    from pipekit.engine import measure_memory as measure_memory
    from pipekit.host.user_frames import PipekitWarning as PipekitWarning
    from pipekit.layers import skips as skips
    from pipekit.layers.batch_norm import DeferredBatchNorm as DeferredBatchNorm
    from pipekit.layers.batch_norm import convert_batch_norm as convert_batch_norm
    from pipekit.layers.pass_state import is_checkpointing as is_checkpointing
    from pipekit.layers.pass_state import is_recomputing as is_recomputing
    from pipekit.ledger import claims as claims
    from pipekit.losses.losses import LossScale as LossScale
    from pipekit.losses.losses import MeanOver as MeanOver
    from pipekit.measured import explain as explain
    from pipekit.measured import read_trace as read_trace
    from pipekit.partition.stages import stages as stages
    from pipekit.performance.recommend import recommend as recommend
    from pipekit.planning import plan as plan
    from pipekit.plans import Plan as Plan
    from pipekit.profiling import Profile as Profile
    from pipekit.profiling.measured import profile as profile
    from pipekit.schedules import Schedule as Schedule
    from pipekit.schedules import ScheduleError as ScheduleError
    from pipekit.searching.search import search as search
    from pipekit.simulation.simulate import simulate as simulate
    from pipekit.torch_pipelining import torch_runtime as torch_runtime
    from pipekit.traces import Memory as Memory
    from pipekit.traces import Trace as Trace

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

_PACKAGES = {
    "": "clusters datasets emulation explore measured models oracle planning plots profiling "
    "schedules searching simulation staleness traces",
    "layers.": "skips",
    "ledger.": "claims",
}
_MODULES = {name: home + name for home, names in _PACKAGES.items() for name in names.split()}
"""Likewise of each module."""

__all__ = sorted([*_HOMES, *_MODULES])


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
