"""A stage of a :class:`pipekit.PipelinedModule` in one minibatch, and where minibatches go."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.func import functional_call

from pipekit.devices import Clock
from pipekit.engine.execution.passes import InferencePasses, PassConfig, Passes
from pipekit.engine.observers.memory_tracker import MemoryTracker
from pipekit.engine.observers.observer import WorkerView, observers_of
from pipekit.engine.observers.record import TraceRecorder
from pipekit.engine.options import Watch
from pipekit.engine.transports.threads import ThreadWorker
from pipekit.engine.transports.worker_threads import WorkerThreads
from pipekit.plans import Recompute


@dataclass(frozen=True)
class ModuleRuntime:
    """Where minibatches go, and how they are watched."""

    clocks: Sequence[Clock]  # of each stage's device
    workers: Sequence[ThreadWorker]  # where each stage computes, and by what its tensors travel
    watch: Watch
    timeout: float | None  # seconds without progress after which a forward or backward fails
    # Stages with a worker in them, maybe one that a failed pass has left in a layer.
    at_work: set[int] = field(default_factory=set)
    threads: WorkerThreads = field(default_factory=WorkerThreads)  # in which the stages compute


class ModuleStage:
    """A stage in a minibatch, and those that watch its worker from the beginning to the end."""

    def __init__(
        self,
        runtime: ModuleRuntime,
        config: PassConfig,
        number: int,
        recompute: Recompute,
        keeps: bool,
    ) -> None:
        self.recompute, self._module = recompute, config.part.module
        self.aliases = {
            name: p.detach().requires_grad_(p.requires_grad)
            for name, p in self._module.named_parameters()
        }
        weights, clock = _Weights(self._module, self.aliases), runtime.clocks[number]
        kind = Passes if keeps else InferencePasses
        self.passes = kind(config, weights.modules, clock.device, weights.parameters)
        self.view = WorkerView(number, clock.device, clock, {number: weights}, int)
        watch = runtime.watch
        self.trace = TraceRecorder(clock) if watch.trace else None
        self.memory = MemoryTracker({number: recompute}) if watch.memory else None
        recording = filter(None, (self.trace, self.memory))
        self.observers = [*recording, *observers_of(watch.observers, number)]
        for observer in self.observers:
            observer.begin(self.view)
        if self.memory and not keeps:  # weights are all that stays of a forward alone
            self.memory.close(number)
            self.observers.remove(self.memory)

    def with_aliases(self, function: Callable[[], None]) -> None:
        """Call a function while the module has the aliases for parameters."""
        named = {f"module.{name}": tensor for name, tensor in self.aliases.items()}
        functional_call(_Around(self._module), named, (function,))


@dataclass(frozen=True)
class _Weights:
    """A stage's weights in a minibatch, as observers see them."""

    module: nn.Sequential
    aliases: Mapping[str, Tensor]
    optimizer: None = None
    kept_bytes: int = 0

    @property
    def modules(self) -> list[nn.Sequential]:
        return [self.module]

    @property
    def parameters(self) -> list[list[Tensor]]:
        return [[alias for alias in self.aliases.values() if alias.requires_grad]]

    def all_gradients(self) -> Iterator[Tensor]:
        return (alias.grad for alias in self.aliases.values() if alias.grad is not None)


class _Around(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], None]) -> None:
        function()
