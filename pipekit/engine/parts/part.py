"""A feature of a worker's run: what it wraps, and what it watches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from pipekit.engine.config import RunConfig
from pipekit.engine.early_stop import StopPoint
from pipekit.engine.execution.executor import Executor
from pipekit.engine.execution.pipeline_io import PipelineIO, TrainingIO
from pipekit.engine.execution.stage import Stage, TrainedStage
from pipekit.engine.execution.stage_io import StageRuntime
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import Transport
from pipekit.engine.updates.update_synchronizer import UpdateSynchronizer
from pipekit.plans import Recompute
from pipekit.schedules import Step, Steps, Task
from pipekit.schedules.lowering.validation import Validation

Execute = Callable[[Step], None]
WhenRight = Callable[[Callable[[], None]], None]
"""Calls a function once the newest update is known to be right."""


@dataclass
class WorkerRun:
    """A worker's run in the making: parts replace what they wrap, and add what watches.

    Attributes:
        index: the worker's number.
        steps: its steps, in order.
        device: where it computes.
        config: what is common to all workers.
        trained: its stages, by index.
        stages: the same, as the executor calls them.
        recompute: which microbatches of a batch each of them recomputes.
        transport: to the other workers.
        ends: where microbatches enter and leave the pipeline.
        io: the same, as the run's batches come in and its losses go out.
        stop_point: where the run ends, as far as that is known.
        observers: watch the worker.
        errors: what ended the run early on this worker.
        validation: when updates are validated that are made before all stages have agreed, or None.
        together: of pairs of steps that are emulated as one, the second by the first one's task.
        when_right: as soon as updates need no validation.
    """

    index: int
    steps: Steps
    device: torch.device
    config: RunConfig
    trained: Mapping[int, TrainedStage]
    stages: Mapping[int, StageRuntime]
    recompute: Mapping[int, Recompute]
    transport: Transport
    ends: PipelineIO
    io: TrainingIO
    stop_point: StopPoint
    observers: list[Observer]
    errors: list[Exception]
    validation: Validation | None
    together: Mapping[Task, Step]
    when_right: WhenRight = lambda call: call()

    @property
    def kept(self) -> dict[int, Stage]:
        """The stages with weights, which emulated ones have not."""
        return {n: stage for n, stage in self.trained.items() if isinstance(stage, Stage)}


class Part:
    """A feature; one that is made wraps transport, ends or stages of the run, or watches it."""

    def __init__(self, run: WorkerRun) -> None:
        pass

    def around(self, execute: Execute, executor: Executor, updates: UpdateSynchronizer) -> Execute:
        """Return what executes a step, given what does so without this part."""
        return execute

    def conclude(self) -> None:
        """Do what is left after the last step."""
