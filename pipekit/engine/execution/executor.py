"""Executes steps: waits for what each needs, computes, and sends what it gives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pipekit.devices import to_device
from pipekit.engine.execution.pipeline_io import (
    GradientsIO,
    PipelineIO,
    StageGradients,
    StageIO,
    Target,
)
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.observers.observer import Observer, listeners
from pipekit.engine.transport import Transport
from pipekit.engine.updates.shared_stages import SharedStages
from pipekit.plans import Recompute
from pipekit.schedules import Op, Step
from pipekit.schedules.lowering.steps import MAIN
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree, tree_bytes

_FORWARD, _WEIGHT, _UPDATE = Op.FORWARD.name, Op.BACKWARD_WEIGHT.name, Op.UPDATE.name
_BACKWARD, _INPUT = Op.BACKWARD.name, Op.BACKWARD_INPUT.name


class StageRuntime(Protocol):
    """A stage that can run the passes of a microbatch.

    ``microbatch`` is its index over all runs, the key of its random numbers; ``slot`` the weight
    slot that a pass reads; ``update`` the one that sums the gradients of the weights.
    """

    def infer(self, x: StageIO, microbatch: int) -> StageIO:
        """Return the output for ``x``, keeping nothing."""

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        """Return the output for ``x``, cut from the graph; on the last stage, the weighted loss.

        ``x`` has a leading dimension of rows; ``target`` is None on all stages but the last; with
        ``recompute`` only the input is kept until the backward.
        """

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        """Run again a forward whose graph was not kept; return its output."""

    def backward(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Add a pending microbatch's gradients to those of the weights; return the input's.

        ``gradients`` are those of the output; None if that is a loss, for ones.  ValueError is
        raised if a layer draws random numbers in its backward.
        """

    def backward_input(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Return the gradients of the input, and leave those of the weights for later."""

    def backward_weight(self, microbatch: int, slot: int, update: int) -> None:
        """Add the microbatch's gradients to those of the weights, after :meth:`backward_input`."""


class Executor:
    """Executes the steps of one worker; one table says which method executes which op.

    ``recompute`` is each stage's mode, ``first_microbatch`` the number of microbatches of earlier
    runs, ``gradients`` the ends of backwards where the output is no loss; in inference no backwards
    follow.
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, StageRuntime],
        recompute: Mapping[int, Recompute],
        transport: Transport,
        ends: PipelineIO,
        device: torch.device,
        *,
        gradients: GradientsIO | None = None,
        updates: UpdateSynchronizer | None = None,
        shared: SharedStages | None = None,
        observers: Sequence[Observer] = (),
        first_microbatch: int = 0,
        training: bool = True,
    ) -> None:
        self._stages, self._recompute = stages, recompute
        self._updates, self._shared = updates, shared
        self._transport, self._ends, self._device = transport, ends, device
        self._gradient_ends = gradients
        self._first_microbatch = first_microbatch
        self._methods = self._IN_TRAINING if training else self._IN_INFERENCE
        self._tell_received = listeners(observers, Observer.received, worker)
        self._tell_before = listeners(observers, Observer.before_compute, worker)
        self._tell_after = listeners(observers, Observer.after_compute, worker)
        self._tell_sent = listeners(observers, Observer.sent, worker)

    def execute(self, step: Step) -> None:
        """Execute one step; an error of a layer or the loss is raised, or Aborted if another worker
        fails.
        """
        self._methods[step.task.op](self, step)

    def _run_again(self, step: Step) -> None:
        """Run a forward again that kept only its input (GPipe, 2.3); it waits for no gradient.

        It runs right before the backward, or where the table has it.
        """
        self._before(step, RECOMPUTE, ())
        microbatch = step.task.microbatch + self._first_microbatch
        output = self._stages[step.task.stage].recompute(microbatch, step.slot)
        self._after(step, RECOMPUTE, output)

    def _forward(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        x = self._input(step)
        target = None if step.sends else self._ends.target(microbatch)
        if target:
            target = target._replace(target=to_device(target.target, self._device))
        self._before(step, _FORWARD, (x.main, x.skips, target.target if target else ()))
        recomputed = step.recomputed(self._recompute[stage])
        microbatch += self._first_microbatch
        self._give(step, self._stages[stage].forward(x, microbatch, step.slot, target, recomputed))

    def _infer(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        x = self._input(step)
        self._before(step, _FORWARD, (x.main, x.skips))
        self._give(step, self._stages[stage].infer(x, microbatch + self._first_microbatch))

    def _give(self, step: Step, output: StageIO) -> None:
        self._after(step, _FORWARD, output)
        self._send(step, output)
        if not step.sends:
            self._ends.output(step.task.microbatch, output.main)

    def _backward(self, step: Step) -> None:
        op, stage, microbatch, _ = step.task
        runtime, last = self._stages[stage], self._shared if step.ends_update else None
        if step.recomputed(self._recompute[stage]) and not step.again_at_a_place:
            self._run_again(step)
        run, activity = runtime.backward, _BACKWARD
        if op is Op.BACKWARD_INPUT:
            run, activity = runtime.backward_input, _INPUT
        gradients = self._gradients(step)
        self._before(step, activity, gradients or ())
        if last:
            last.begin_last(stage, step.update)
        result = run(microbatch + self._first_microbatch, step.slot, step.update, gradients)
        if last:
            last.end_last(stage, step.update)
        self._after(step, activity, result)
        self._send(step, result)
        if not step.sends and self._gradient_ends:
            self._gradient_ends.input_gradients(microbatch, result)

    def _backward_weight(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        self._before(step, _WEIGHT, ())
        last = self._shared if step.ends_update else None
        if last:
            last.begin_last(stage, step.update)
        microbatch += self._first_microbatch
        self._stages[stage].backward_weight(microbatch, step.slot, step.update)
        if last:
            last.end_last(stage, step.update)
        self._after(step, _WEIGHT, ())

    def _update(self, step: Step) -> None:
        _, stage, _, version = step.task
        assert self._updates, "only workers that train make updates"
        self._updates.settle(stage, version)
        self._before(step, _UPDATE, ())
        self._updates.update(stage, step.slot)
        self._after(step, _UPDATE, ())

    # Functions and not bound methods, with which an executor would hold on to itself, and so to
    # everything that is pending in its stages, until Python looks for circles.
    _IN_TRAINING: ClassVar[Mapping[Op, Callable[["Executor", Step], None]]] = {
        Op.FORWARD: _forward,
        Op.BACKWARD: _backward,
        Op.BACKWARD_INPUT: _backward,
        Op.BACKWARD_WEIGHT: _backward_weight,
        Op.UPDATE: _update,
        Op.RECOMPUTE: _run_again,
    }
    _IN_INFERENCE: ClassVar[Mapping[Op, Callable[["Executor", Step], None]]] = {Op.FORWARD: _infer}

    def _input(self, step: Step) -> StageIO:
        if not step.receives:
            return StageIO(to_device(self._ends.input(step.task.microbatch), self._device), {})
        contents = self._receive(step)
        main = contents.pop(MAIN)
        return StageIO(main, {n: skip for n, skip in contents.items() if isinstance(skip, Tensor)})

    def _gradients(self, step: Step) -> StageGradients | None:
        if not step.receives:
            ends = self._gradient_ends
            return ends.output_gradients(step.task.microbatch) if ends else None
        contents = self._receive(step)
        main = contents.pop(MAIN)
        return StageGradients(main, {n: content[0] for n, content in contents.items() if content})

    def _receive(self, step: Step) -> dict[int, Any]:
        """Return the contents of a step's messages, by skip connection or MAIN."""
        contents = {}
        for message, source in step.receives:
            content = contents[message.skip] = self._transport.receive(message, source)
            for tell in self._tell_received:
                tell(step, message, source, content)
        return contents

    def _send(self, step: Step, result: StageIO | StageGradients) -> None:
        for message, receiver in step.sends:
            content: Tree = result.main
            if message.skip != MAIN:
                content = result.skips.get(message.skip, ())  # nothing: it is None, or has none
                if isinstance(result, StageGradients):
                    content = {0: content} if isinstance(content, Tensor) else {}
            size = tree_bytes(content)  # before the receiver may do with it what it likes
            self._transport.send(message, receiver, content)
            for tell in self._tell_sent:
                tell(step, message, receiver, content, size)

    def _before(self, step: Step, activity: str, inputs: Tree) -> None:
        for tell in self._tell_before:
            tell(step, activity, inputs)

    def _after(self, step: Step, activity: str, outputs: Tree) -> None:
        for tell in self._tell_after:
            tell(step, activity, outputs)
