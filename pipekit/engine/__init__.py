"""Really runs a schedule: stages, weight versions, workers, and the transports between them."""

from pipekit.engine.emulated import emulate
from pipekit.engine.module import PipelinedModule
from pipekit.engine.pipeline import Pipeline
from pipekit.engine.processes import WorkerDied
from pipekit.engine.run import Run, measure_memory

__all__ = ["Pipeline", "PipelinedModule", "Run", "WorkerDied", "emulate", "measure_memory"]
