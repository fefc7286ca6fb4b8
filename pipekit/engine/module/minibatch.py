"""One minibatch of a :class:`pipekit.PipelinedModule`: its forward, and its backward if ever."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial

import torch
from torch import Tensor

from pipekit.devices import ThreadStreams, keep_for_current_stream, record_events, wait_events
from pipekit.engine.execution.passes import PassConfig
from pipekit.engine.execution.pipeline_io import StageGradients
from pipekit.engine.execution.worker import Executor, Worker
from pipekit.engine.module.backward_order import Gradients, Place
from pipekit.engine.module.module_stage import ModuleRuntime, ModuleStage
from pipekit.engine.observers.observer import Observer, listeners
from pipekit.engine.observers.record import WorkerRecord, recorded
from pipekit.engine.transports.threads import ThreadNetwork
from pipekit.engine.transports.watchdog import Watchdog, WorkerStates
from pipekit.engine.transports.worker_threads import default_device
from pipekit.plans import Recompute
from pipekit.schedules import Op, Step, Steps
from pipekit.trees import Tree, differentiable, leaves, refill


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
        recompute: Recompute,
        steps: Iterable[Step],
        inputs: Sequence[Tree],
        keeps: bool,
    ) -> None:
        # Autograd may have another thread run the backward.
        self._context, self._default_device = copy_context(), default_device()
        self._runtime, self._keeps = runtime, keeps
        self._inputs: dict[int, Tree] = dict(enumerate(inputs))
        self._outputs: dict[int, Tree] = {}
        self._input_devices = [tensor.device for tensor in differentiable(inputs[0])]
        self._steps = {(s.task.op, s.task.stage, s.task.microbatch): s for s in steps}
        self._stages = [
            ModuleStage(runtime, config, stage, recompute, keeps)
            for stage, config in enumerate(configs)
        ]
        # The streams of the thread that calls the forward: from there the inputs come, and there
        # outputs and gradients go, in whatever thread and stream autograd runs the backward.
        devices = [clock.device for clock in runtime.clocks]
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
                found = [alias.grad for alias in stage.aliases.values()]
                gradients += [None if g is None else keep_for_current_stream(g) for g in found]
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

        def work(number: int) -> None:
            stage = self._stages[number]
            with (
                self._default_device(),
                runtime.workers[number].entered(self._ready),
                _noted(number, runtime.at_work),
            ):
                transport, observers = network.transport(number), [*stage.observers, states]
                executor = Executor(
                    number,
                    {number: stage.passes},
                    {number: stage.recompute},
                    transport,
                    self,
                    stage.view.device,
                    gradients=self,
                    observers=observers,
                )
                worker = Worker(stage.view, executor.execute, transport, observers)
                stage.with_aliases(partial(worker.execute, steps[number]))
                states.end(number)

        last = op is Op.BACKWARD or not self._keeps
        try:
            runtime.threads.run(
                lambda number, _: self._context.copy().run(work, number),
                len(stages),
                network.abort,
                on_wait=watchdog.look,
            )
            if last:
                self._tell(Observer.end)
        except BaseException:
            last = True
            raise
        finally:
            for worker in runtime.workers:
                self._caller.wait_stream(worker.stream)
            if last:
                self._tell(Observer.close)

    def _tell(self, method: Callable[[Observer, int], None]) -> None:
        for number, stage in enumerate(self._stages):
            for tell in listeners(stage.observers, method, number):
                tell()

    def _gradients_of_inputs(self) -> list[Tensor | None]:
        pieces = [self._input_gradients.pop(k).main for k in sorted(self._input_gradients)]
        found: list[Tensor | None] = []
        for n, device in enumerate(self._input_devices):
            each = [keep_for_current_stream(piece[n]) for piece in pieces if n in piece]
            whole = len(each) == len(pieces)
            found.append(torch.cat(each).to(device) if whole else None)
        return found


@contextmanager
def _noted(stage: int, at_work: set[int]) -> Iterator[None]:
    at_work.add(stage)
    try:
        yield
    finally:
        at_work.discard(stage)
