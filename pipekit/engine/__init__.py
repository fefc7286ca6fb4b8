"""Really runs a schedule: stages, weight versions, workers, and the transports between them."""

from pipekit.engine.config import Loss
from pipekit.engine.module.pipelined_module import PipelinedModule
from pipekit.engine.observers.observer import Observer
from pipekit.engine.observers.reporter import BatchDone
from pipekit.engine.options import Checkpoints, Execution, Updates, Watch
from pipekit.engine.pipeline import Pipeline
from pipekit.engine.runs.run import Run, measure_memory
from pipekit.engine.transports.processes.forkserver import WorkerDied
from pipekit.engine.transports.watchdog import Stalled
from pipekit.engine.updates.weight_versions import OptimizerFactory

__all__ = [
    "BatchDone",
    "Checkpoints",
    "Execution",
    "Loss",
    "Observer",
    "OptimizerFactory",
    "Pipeline",
    "PipelinedModule",
    "Run",
    "Stalled",
    "Updates",
    "Watch",
    "WorkerDied",
    "measure_memory",
]
