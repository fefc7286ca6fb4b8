"""Who watches a stage's worker while a minibatch is on its way, and what was recorded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from pipekit.devices import peak_bytes, reset_peak_bytes
from pipekit.engine.module.module_runtime import ModuleRuntime
from pipekit.engine.observers.memory_tracker import MemoryTracker
from pipekit.engine.observers.observer import Observer, WorkerView, observers_of
from pipekit.engine.observers.record import Record, TraceRecorder
from pipekit.plans import Recompute
from pipekit.schedules import Steps


@dataclass(frozen=True)
class StageSteps:
    """What a stage's worker does in a forward or a backward, by its number."""

    index: int
    steps: Steps


class WatchedStage:
    """A stage's worker, from the beginning of a minibatch to its end.

    Args:
        stage: its number.
        runtime: where the minibatch goes.
        aliases: the stage's parameters in this minibatch, by name.
        recompute: which microbatches are recomputed.
        keeps: whether there may be a backward.

    Attributes:
        view: what observers see of the worker.
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
        self._trace = TraceRecorder() if runtime.watch.trace else None
        self._memory = MemoryTracker({stage: recompute}) if runtime.watch.memory else None
        self._allocated_bytes: int | None = None
        if self._memory:
            reset_peak_bytes(clock.device)
        self.observers: list[Observer] = [each for each in (self._trace, self._memory) if each]
        self.observers += observers_of(runtime.watch.observers, stage)
        for observer in self.observers:
            observer.begin(self.view)
        if self._memory and not keeps:  # weights are all that stays of a forward alone
            self._memory.close(stage)
            self.observers.remove(self._memory)

    @property
    def record(self) -> Record:
        """What has been recorded so far."""
        return Record(
            self._trace.events() if self._trace else [],
            self._memory.samples if self._memory else [],
            self._allocated_bytes,
        )

    def note_peak(self) -> None:
        """Note what the device's allocator says, if memory is followed."""
        if self._memory:
            self._allocated_bytes = peak_bytes(self.view.device)

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
