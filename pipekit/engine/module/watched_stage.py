"""Where minibatches of a :class:`pipekit.PipelinedModule` go, and who watches them on their way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from pipekit.devices import Clock
from pipekit.engine.observers.observer import WorkerView, observers_of
from pipekit.engine.observers.record import WorkerRecording
from pipekit.engine.options import Watch
from pipekit.engine.transports.threads import ThreadWorker
from pipekit.engine.transports.worker_threads import WorkerThreads
from pipekit.plans import Recompute


@dataclass(frozen=True)
class ModuleRuntime:
    """Where minibatches go, and how they are watched.

    Attributes:
        modules: each stage's layers.
        clocks: of each stage's device.
        workers: where each stage computes, and by what its tensors travel.
        watch: what is recorded, and who watches the stages' workers.
        timeout: seconds without progress after which a forward or backward fails, or None.
        at_work: stages with a worker in them.  One that a failed pass has left behind, because a
            layer does not return, still has the weights of its minibatch in the stage.
        threads: in which the stages compute.
    """

    modules: Sequence[nn.Sequential]
    clocks: Sequence[Clock]
    workers: Sequence[ThreadWorker]
    watch: Watch
    timeout: float | None
    at_work: set[int] = field(default_factory=set)
    threads: WorkerThreads = field(default_factory=WorkerThreads)


class WatchedStage:
    """A stage's worker, from the beginning of a minibatch to its end.

    Attributes:
        view: what observers see of the worker.
        recording: what is recorded of it.
        observers: those that watch it.
    """

    def __init__(
        self,
        stage: int,
        runtime: ModuleRuntime,
        aliases: Mapping[str, Tensor],
        recompute: Recompute,
        keeps: bool,
    ) -> None:
        clock = runtime.clocks[stage]
        weights = {stage: _Weights(runtime.modules[stage], aliases)}
        self.view = WorkerView(stage, clock.device, clock, weights, int)
        self.recording = WorkerRecording(runtime.watch, {stage: recompute}, clock.device)
        self.observers = self.recording.observers
        self.observers += observers_of(runtime.watch.observers, stage)
        for observer in self.observers:
            observer.begin(self.view)
        memory = self.recording.memory
        if memory and not keeps:  # weights are all that stays of a forward alone
            memory.close(stage)
            self.observers.remove(memory)

    def end(self) -> None:
        """Tell the observers that the worker has done all its steps."""
        for observer in self.observers:
            observer.end(self.view.number)

    def close(self) -> None:
        """Tell the observers that the worker stops."""
        for observer in self.observers:
            observer.close(self.view.number)


@dataclass(frozen=True)
class _Weights:
    """A stage's weights in a minibatch, as observers see them."""

    module: nn.Module
    aliases: Mapping[str, Tensor]
    optimizer: None = None
    kept_bytes: int = 0

    @property
    def modules(self) -> list[nn.Module]:
        return [self.module]

    @property
    def parameters(self) -> list[list[Tensor]]:
        return [[alias for alias in self.aliases.values() if alias.requires_grad]]

    def all_gradients(self) -> Iterator[Tensor]:
        return (alias.grad for alias in self.aliases.values() if alias.grad is not None)
