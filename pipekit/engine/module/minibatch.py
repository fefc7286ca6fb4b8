"""One minibatch of a :class:`pipekit.PipelinedModule`: its forward, and its backward if ever."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from pipekit.devices import (
    ThreadStreams,
    keep_for_current_stream,
    record_events,
    wait_events,
)
from pipekit.engine.execution.passes import InferencePasses, PassConfig, Passes
from pipekit.engine.execution.pipeline_io import StageGradients
from pipekit.engine.execution.worker import Executor, work_through
from pipekit.engine.module.backward_order import Gradients, Place
from pipekit.engine.observers.memory_tracker import MemoryTracker
from pipekit.engine.observers.observer import Observers, WorkerView, observers_of
from pipekit.engine.observers.record import TraceRecorder, WorkerRecord, recorded
from pipekit.engine.options import Watch
from pipekit.engine.transports.threads import ThreadNetwork, ThreadWorker
from pipekit.engine.transports.watchdog import Watchdog, WorkerStates
from pipekit.engine.transports.worker_threads import Notify, WorkerThreads, as_here
from pipekit.layers.module_state import tensors_replaced
from pipekit.schedules import Op, Step, Steps
from pipekit.trees import Tree, differentiable, leaves, refill

StepsByPass = Mapping[tuple[Op, int, int], Step]
"""The steps of a minibatch by op, stage and microbatch."""


@dataclass(frozen=True)
class ModuleRuntime:
    """Where minibatches go, and how they are watched."""

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
        keeps: bool,
    ) -> None:
        self._module = config.part.module
        self.aliases = {
            p: p.detach().requires_grad_(p.requires_grad) for p in self._module.parameters()
        }
        # As they are now: torch.func.functional_call puts others there for the forward alone.
        self._places = [
            (module._parameters, name, parameter)
            for module in self._module.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        weights, clock = _Weights(self._module, self.aliases), runtime.workers[number].clock
        kind = Passes if keeps else InferencePasses
        self.passes = kind(config, weights.modules, clock.device, weights.parameters)
        self.view = WorkerView(number, clock.device, clock, {number: weights}, int)
        watch = runtime.watch
        self.trace = TraceRecorder(clock) if watch.trace else None
        self.memory = MemoryTracker({number: config.recompute}) if watch.memory else None
        recording = filter(None, (self.trace, self.memory))
        self.observers = [*recording, *observers_of(watch.observers, number)]
        for observer in self.observers:
            observer.begin(self.view)
        if self.memory and not keeps:  # weights are all that stays of a forward alone
            self.memory.close(number)
            self.observers.remove(self.memory)

    def with_aliases(self, function: Callable[[], None]) -> None:
        """Call a function while the module has the aliases for parameters."""
        with tensors_replaced([(own, name, self.aliases[p]) for own, name, p in self._places]):
            function()


@dataclass(frozen=True)
class _Weights:
    """A stage's weights in a minibatch, as observers see them."""

    module: nn.Sequential
    aliases: Mapping[nn.Parameter, Tensor]
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


class Minibatch:
    """A minibatch on its way.

    Each stage reads aliases of its parameters, so that gradients come together here, and reach the
    parameters once, however many microbatches there are.  What stages share is an alias of each,
    whose gradients the backwards add up from the last stage to the first.
    """

    def __init__(
        self,
        runtime: ModuleRuntime,
        configs: Sequence[PassConfig],
        steps: StepsByPass,
        inputs: Sequence[Tree],
        keeps: bool,
    ) -> None:
        # Autograd may have another thread run the backward.
        self._as_called = as_here()
        self._runtime, self._keeps, self._steps = runtime, keeps, steps
        self._inputs: dict[int, Tree] = dict(enumerate(inputs))
        self._outputs: dict[int, Tree] = {}
        self._input_devices = [tensor.device for tensor in differentiable(inputs[0])]
        self._stages = [
            ModuleStage(runtime, config, stage, keeps) for stage, config in enumerate(configs)
        ]
        # The streams of the thread that calls the forward: from there the inputs come, and there
        # outputs and gradients go, in whatever thread and stream autograd runs the backward.
        devices = [worker.device for worker in runtime.workers]
        self._caller = ThreadStreams([*devices, *(tensor.device for tensor in leaves(inputs[0]))])
        self._ready: Sequence[torch.Event] = ()
        self.order: list[Place] = []  # of the passes, as autograd comes to them
        self._rows: list[int] = []
        self._output_gradients: Gradients = ()
        self._input_gradients: dict[int, StageGradients] = {}

    @property
    def records(self) -> list[WorkerRecord]:
        return [recorded(stage.trace, stage.memory) for stage in self._stages]

    def forward(self, passes: Iterable[Place]) -> Tree:
        """Return the output [rows, ...] of all microbatches."""
        self._ready = self._caller.record_events()
        self._run(Op.FORWARD, passes)
        outputs = [self._outputs.pop(k) for k in sorted(self._outputs)]
        pieces = [[keep_for_current_stream(t) for t in leaves(output)] for output in outputs]
        if any(tensor.dim() == 0 for tensor in pieces[0]):
            raise ValueError(
                "the last layer gives a number, not rows: the output of a pipelined module is put "
                "together from its microbatches' rows, so compute the loss outside the module"
            )
        self._rows = [len(piece[0]) for piece in pieces]
        return refill(outputs[0], [torch.cat(each) for each in zip(*pieces, strict=True)])

    def begin(self, gradients: Gradients) -> None:
        """Take the gradients of the outputs, ready in the streams of now: autograd has begun."""
        self._output_gradients = gradients
        self._ready = record_events(g for g in gradients if g is not None)
        self.order.clear()

    def differentiate(self) -> Gradients:
        """Return the gradients of inputs and parameters: autograd has come to the end."""
        if not self._rows:
            raise RuntimeError(
                "backward was called a second time for the same output of a pipelined module, "
                "whose graph is gone after the first: run the forward again"
            )
        self._run(Op.BACKWARD, self.order)
        with self._caller.entered():
            gradients = self._gradients_of_inputs()
            for stage in self._stages:
                for alias in stage.aliases.values():
                    found, alias.grad = alias.grad, None  # held once, it is the parameter's own
                    gradients.append(None if found is None else keep_for_current_stream(found))
                stage.aliases.clear()
        self._rows, self._output_gradients = [], ()
        return gradients

    # --- the ends of the pipeline; see execution/pipeline_io.py

    def input(self, microbatch: int) -> Tree:
        tree = self._inputs.pop(microbatch)
        wait_events(leaves(tree), self._ready)
        return tree

    def target(self, microbatch: int) -> None:
        return None

    def output(self, microbatch: int, output: Tree) -> None:
        self._outputs[microbatch] = output

    def output_gradients(self, microbatch: int) -> StageGradients:
        start = sum(self._rows[:microbatch])
        rows = slice(start, start + self._rows[microbatch])
        given = enumerate(self._output_gradients)
        return StageGradients(
            {n: keep_for_current_stream(g[rows]) for n, g in given if g is not None}, {}
        )

    def input_gradients(self, microbatch: int, gradients: StageGradients) -> None:
        self._input_gradients[microbatch] = gradients

    # ----------------------------------------------------------------------------------------------

    def _run(self, op: Op, passes: Iterable[Place]) -> None:
        """Run passes, each stage its own in the order given."""
        runtime = self._runtime
        if runtime.at_work:
            raise RuntimeError(
                f"stage {min(runtime.at_work)} is still in a layer of a forward or backward that "
                f"has failed, or that another thread runs: wait until the layer returns, call the "
                f"module from one thread, or build model and module again"
            )
        steps: dict[int, list[Step]] = defaultdict(list)
        for place in passes:
            steps[place[0]].append(self._steps[op, *place])
        stages = range(len(self._stages))
        network = ThreadNetwork(stages, runtime.workers)
        states = WorkerStates(len(stages))
        each_ones = {stage: Steps(tuple(steps[stage])) for stage in stages}
        watchdog = Watchdog(states, each_ones, [[stage] for stage in stages], runtime.timeout)

        def work(number: int, _: Notify) -> None:
            stage = self._stages[number]
            runtime.at_work.add(number)
            try:
                with runtime.workers[number].entered(self._ready):
                    transport = network.transport(number)
                    observer = Observers([*stage.observers, states])
                    executor = Executor(
                        number,
                        {number: stage.passes},
                        transport,
                        self,
                        stage.view.device,
                        observer,
                        gradients=self,
                    )
                    given = steps[number], number, executor.execute, transport, observer
                    stage.with_aliases(partial(work_through, *given))
                    states.end(number)
            finally:
                runtime.at_work.discard(number)

        last = op is Op.BACKWARD or not self._keeps
        try:
            runtime.threads.run(
                work, len(stages), network.abort, on_wait=watchdog.look, call=self._as_called
            )
            if last:
                for number, stage in enumerate(self._stages):
                    for observer in stage.observers:
                        observer.end(number)
        except BaseException:
            last = True
            raise
        finally:
            for worker in runtime.workers:
                self._caller.wait_stream(worker.stream)
            if last:
                for number, stage in enumerate(self._stages):
                    for observer in stage.observers:
                        observer.close(number)

    def _gradients_of_inputs(self) -> list[Tensor | None]:
        pieces = [self._input_gradients.pop(k).main for k in sorted(self._input_gradients)]
        found: list[Tensor | None] = []
        for n, device in enumerate(self._input_devices):
            each = [keep_for_current_stream(piece[n]) for piece in pieces if n in piece]
            whole = len(each) == len(pieces)
            found.append(torch.cat(each).to(device) if whole else None)
        return found
