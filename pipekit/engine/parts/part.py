"""A feature of a worker's run: the objects that it wraps, and those that it watches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.executor import Executor, StageRuntime
from pipekit.engine.execution.pipeline_io import PipelineIO, TrainingIO
from pipekit.engine.execution.stage import Stage
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import StopPoint, Transport
from pipekit.plans import Recompute
from pipekit.schedules import Step

Execute = Callable[[Step], None]
WhenRight = Callable[[Callable[[], None]], None]
"""Calls a function once the newest update is known to be right."""


@dataclass
class WorkerRun:
    """A worker's run in the making: parts replace the objects that they wrap.

    Attributes:
        assignment: the worker's.
        config: common to all workers.
        trained: its stages, by index.
        stages: the same, as the executor calls them.
        recompute: the mode of each of them.
        transport: to the other workers.
        ends: where microbatches enter and leave the pipeline.
        io: the same, unwrapped.
        stop_point: the known end of the run.
        observers: watch the worker.
        errors: ended the run early on this worker.
        when_right: calls a function as soon as the newest update is known to be right.
    """

    assignment: WorkerAssignment
    config: RunConfig
    trained: Mapping[int, Stage]
    stages: Mapping[int, StageRuntime]
    recompute: Mapping[int, Recompute]
    transport: Transport
    ends: PipelineIO
    io: TrainingIO
    stop_point: StopPoint
    observers: list[Observer]
    errors: list[Exception]
    when_right: WhenRight = lambda call: call()


class Part:
    """A feature; its constructor wraps transport, ends or stages of the run, or adds observers."""

    def __init__(self, run: WorkerRun) -> None:
        pass

    def around(self, execute: Execute, executor: Executor, updates: UpdateSynchronizer) -> Execute:
        """Return the function that executes a step, given the one without this part."""
        return execute

    def conclude(self) -> None:
        """Finish after the last step."""
