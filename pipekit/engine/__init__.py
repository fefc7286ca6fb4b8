"""Really runs a schedule: stages, weight versions, workers, and the transports between them."""

from pipekit.engine.emulated import emulate
from pipekit.engine.module import PipelinedModule
from pipekit.engine.pipeline import Pipeline
from pipekit.engine.processes import WorkerDied
from pipekit.engine.run import Run

__all__ = ["Pipeline", "PipelinedModule", "Run", "WorkerDied", "emulate"]
