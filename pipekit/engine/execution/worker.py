"""A worker: one device, one list of steps, and the small function for each op that executes them.

A step waits for its messages, computes, and sends its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipekit.devices import to_device
from pipekit.engine.execution.pipeline_io import (
    GradientsIO,
    PipelineIO,
    StageGradients,
    StageIO,
    StageRuntime,
)
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.feed import BeyondStop
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.engine.transport import Aborted, Transport
from pipekit.layers.pass_state import during, set_ends_batch
from pipekit.schedules import Op, Step
from pipekit.schedules.lowering.steps import MAIN
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree, tree_bytes


@contextmanager
def observed(observer: Observer, view: WorkerView) -> Iterator[None]:
    """Have a worker watched from the observers' ``begin`` to their ``end``."""
    try:
        observer.begin(view)
        yield
        observer.end(view.number)
    finally:
        observer.close(view.number)


def work_through(
    steps: Iterable[Step],
    worker: int,
    execute: Callable[[Step], None],
    transport: Transport,
    observer: Observer,
    # Whether the other steps can go on after a step's error.
    survives: Callable[[Step, Exception], bool] = lambda step, error: False,
) -> None:
    """Execute a worker's steps, with observers around each: here nothing knows methods or ops.

    An error gets a note that names the task; Aborted is raised if another worker failed.
    """
    with during():
        for step in steps:
            try:
                transport.require_peers()
                set_ends_batch(step.ends_batch)
                observer.before_step(worker, step)
                execute(step)
                observer.after_step(worker, step)
            except Aborted:
                raise
            except BeyondStop:  # before this step
                continue
            except Exception as error:
                error.add_note(f"(raised in {step.task})")
                if not survives(step, error):
                    raise


class Executor:
    """Executes the steps of one worker; one table says which method executes which op."""

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, StageRuntime],
        transport: Transport,
        ends: PipelineIO,
        device: torch.device,
        observer: Observer,
        *,
        gradients: GradientsIO | None = None,  # the ends, if the output is not a loss
        updates: UpdateSynchronizer | None = None,
    ) -> None:
        self._stages, self._updates = stages, updates
        self._transport, self._ends, self._device = transport, ends, device
        self._gradient_ends = gradients
        self._worker, self._observer = worker, observer
        self._pending = self.most_pending = 0  # microbatches that wait for their backward
        self.sent_bytes: Counter[tuple[int, str]] = Counter()  # by receiver and purpose

    def execute(self, step: Step) -> None:
        """Execute one step; raises as :func:`work_through`."""
        self._METHODS[step.task.op](self, step)

    def _run_again(self, step: Step) -> None:
        """Run a forward again (GPipe, 2.3), right before its backward or where the table has it."""
        self._observer.before_compute(self._worker, step, RECOMPUTE, ())
        output = self._stages[step.task.stage].run_again(step)
        self._observer.after_compute(self._worker, step, RECOMPUTE, output)

    def _forward(self, step: Step) -> None:
        op, stage, microbatch, _ = step.task
        if step.receives:
            x = StageIO(*self._receive(step))
        else:
            x = StageIO(to_device(self._ends.input(microbatch), self._device), {})
        target = None if step.sends else self._ends.target(microbatch)
        if target:
            target = target._replace(target=to_device(target.target, self._device))
        inputs = x.main, x.skips, target.target if target else ()
        self._observer.before_compute(self._worker, step, op.name, inputs)
        output = self._stages[stage].forward(step, x, target)
        self._observer.after_compute(self._worker, step, op.name, output)
        self._send(step, output)
        if not step.sends:
            self._ends.output(microbatch, output.main)
        self._pending += 1
        self.most_pending = max(self.most_pending, self._pending)

    def _backward(self, step: Step) -> None:
        op, number, microbatch, _ = step.task
        stage = self._stages[number]
        if step.recomputed(stage.recompute) and not step.again_at_a_place:
            self._run_again(step)
        gradients = None
        if step.receives:
            gradients = StageGradients(*self._receive(step))
        elif self._gradient_ends:
            gradients = self._gradient_ends.output_gradients(microbatch)
        self._observer.before_compute(self._worker, step, op.name, gradients or ())
        result = stage.backward(step, gradients)
        self._pending -= op.adds_gradient
        self._observer.after_compute(self._worker, step, op.name, result)
        self._send(step, result)
        if not step.sends and self._gradient_ends:
            self._gradient_ends.input_gradients(microbatch, result)

    def _backward_weight(self, step: Step) -> None:
        op, stage, *_ = step.task
        self._observer.before_compute(self._worker, step, op.name, ())
        self._stages[stage].backward_weight(step)
        self._pending -= 1
        self._observer.after_compute(self._worker, step, op.name, ())

    def _update(self, step: Step) -> None:
        op, stage, _, version = step.task
        assert self._updates, "only workers that train make updates"
        self._updates.settle(stage, version)
        self._observer.before_compute(self._worker, step, op.name, ())
        self._updates.update(stage, step.slot)
        self._observer.after_compute(self._worker, step, op.name, ())

    # Functions, not bound methods: these would refer back to the executor, and keep all that is
    # pending in its stages alive until Python collects cycles.
    _METHODS: ClassVar[Mapping[Op, Callable[["Executor", Step], None]]] = {
        Op.FORWARD: _forward,
        Op.BACKWARD: _backward,
        Op.BACKWARD_INPUT: _backward,
        Op.BACKWARD_WEIGHT: _backward_weight,
        Op.UPDATE: _update,
        Op.RECOMPUTE: _run_again,
    }

    def _receive(self, step: Step) -> tuple[Any, dict[int, Tensor]]:
        main, skips = None, {}
        for message, source in step.receives:
            content = self._transport.receive(message, source)
            self._observer.received(self._worker, step, message, source, content)
            if message.skip == MAIN:
                main = content
            elif isinstance(content, Tensor):  # else nothing has come of it
                skips[message.skip] = content
        return main, skips

    def _send(self, step: Step, result: StageIO | StageGradients) -> None:
        for message, receiver in step.sends:
            is_main = message.skip == MAIN
            content: Tree = result.main if is_main else result.skips.get(message.skip, ())
            size = tree_bytes(content)  # before the receiver may do with it what it likes
            self._transport.send(message, receiver, content)
            if receiver != self._worker:
                self.sent_bytes[receiver, message.purpose] += size
            self._observer.sent(self._worker, step, message, receiver, content, size)
