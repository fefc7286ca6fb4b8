"""Really runs a schedule: stages, weight versions, workers, and the transports between them."""

from pipekit.engine.config import Loss as Loss
from pipekit.engine.module.pipelined_module import PipelinedModule as PipelinedModule
from pipekit.engine.observers.observer import Observer as Observer
from pipekit.engine.observers.reporter import BatchDone as BatchDone
from pipekit.engine.options import Checkpoints as Checkpoints
from pipekit.engine.options import Execution as Execution
from pipekit.engine.options import Updates as Updates
from pipekit.engine.options import Watch as Watch
from pipekit.engine.pipeline import Pipeline as Pipeline
from pipekit.engine.runs.run import Run as Run
from pipekit.engine.runs.run import measure_memory as measure_memory
from pipekit.engine.transports.processes.forkserver import WorkerDied as WorkerDied
from pipekit.engine.transports.watchdog import Stalled as Stalled
from pipekit.engine.updates.weight_versions import OptimizerFactory as OptimizerFactory
