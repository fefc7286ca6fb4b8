"""Goes on after an update before all stages have agreed to it, and back if it was wrong.

What runs on unvalidated weights are forwards: see :mod:`pipekit.schedules.lowering.validation`.
They are run again from what they took in, of which another stage may send some again.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from pipekit.engine.execution.pipeline_io import PipelineIO
from pipekit.engine.observers.observer import Observer, StageWeights, WorkerView
from pipekit.engine.transport import Transport
from pipekit.layers.buffers import named_buffers, set_buffers
from pipekit.layers.pass_state import set_ends_batch
from pipekit.schedules import Message, Op, Step
from pipekit.schedules.lowering.validation import Validation
from pipekit.trees import Tree, tree_map


class Updates(Protocol):
    """What makes updates that are validated later."""

    @property
    def pending(self) -> int:
        """The update that is to be validated; 0 if there is none."""

    def validate(self) -> bool:
        """Wait for the decision, and make the update again if it was wrong."""


class RepeatableInputs:
    """What passes take in and give out; what speculative forwards take in can be had once more.

    It is both a :class:`Transport` and a :class:`PipelineIO`.

    Args:
        again: the messages that come a second time if an update was wrong, with its number.
        transport: to the other workers.
        ends: of the pipeline.

    Attributes:
        wrong: the updates that were wrong.
        keeping: whether what comes in is kept.
        repeating: the update on which forwards are being run again, or 0.
    """

    def __init__(
        self, again: Mapping[Message, int], transport: Transport, ends: PipelineIO
    ) -> None:
        self._again, self._transport, self._ends = again, transport, ends
        self.require_peers, self.finish = transport.require_peers, transport.finish
        self.begin_all_reduce, self.channel = transport.begin_all_reduce, transport.channel
        self.target, self.output = ends.target, ends.output
        self.output_gradients, self.input_gradients = ends.output_gradients, ends.input_gradients
        self.wrong: set[int] = set()
        self.keeping, self.repeating = False, 0
        self._kept: dict[Message | int, Tree] = {}  # by message, and by microbatch

    def forget(self) -> None:
        """Drop what has been kept."""
        self._kept.clear()

    def input(self, microbatch: int) -> Tree:
        """Return what the first stage gets."""
        if self.repeating:
            return self._once_more(microbatch)
        return self._keep(microbatch, self._ends.input(microbatch))

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message: if it comes twice, for the second one."""
        update = self._again.get(message)
        if self.repeating and update != self.repeating:
            return self._once_more(message)
        content = None if self.repeating else self._transport.receive(message, source)
        if update in self.wrong:
            content = self._transport.receive(message._replace(attempt=1), source)
        return self._keep(message, content)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message."""
        attempt = 1 if self.repeating else 0
        self._transport.send(message._replace(attempt=attempt), destination, content)

    def _keep(self, name: Message | int, content: Tree) -> Tree:
        if self.keeping:
            self._kept[name] = content
        return content

    def _once_more(self, name: Message | int) -> Tree:
        return tree_map(Tensor.detach, self._kept[name])


class PostValidation:
    """Executes a worker's steps; an update is made at once, and validated when it has to be.

    Args:
        validation: when that is.
        inputs: what the worker's passes take in.
        execute: executes one step.
        repeat: runs a step's forward again.
        updates: makes the updates.
        weights: of the worker's stages.
    """

    def __init__(
        self,
        validation: Validation,
        inputs: RepeatableInputs,
        execute: Callable[[Step], None],
        repeat: Callable[[Step], None],
        updates: Updates,
        weights: Mapping[int, StageWeights],
    ) -> None:
        self._validation, self._inputs = validation, inputs
        self._execute, self._repeat = execute, repeat
        self._updates, self._weights = updates, weights
        self._forwards: list[Step] = []  # since the pending update
        self._buffers: dict[int, dict[str, Tensor]] = {}  # of their stages, as they were before
        self._late: list[Callable[[], None]] = []  # to be called once the update is right

    def execute(self, step: Step) -> None:
        """Execute one step; before it, if need be, validate the pending update."""
        task, pending = step.task, self._updates.pending
        if pending and self._validation.before.get(task) == pending:
            self.validate()
            set_ends_batch(step.ends_batch)  # forwards that ran again have set it
        speculative = pending and self._validation.speculative.get(task) == pending
        if not speculative:
            self._execute(step)
            return
        if task.stage not in self._buffers:
            module = self._weights[task.stage].modules[step.slot]
            self._buffers[task.stage] = {
                name: buffer.clone() for name, buffer in named_buffers(module).items()
            }
        self._inputs.keeping = True
        self._execute(step)
        self._inputs.keeping = False
        self._forwards.append(step)

    def validate(self) -> None:
        """Wait for the decision on the pending update, if any; if it was wrong, go back."""
        update = self._updates.pending
        if not update:
            return
        if not self._updates.validate():
            self._inputs.wrong.add(update)
            self._run_again(update)
        self._forwards.clear()
        self._buffers.clear()
        self._inputs.forget()
        while self._late:
            self._late.pop(0)()

    def later(self, observer: Observer) -> Observer:
        """Return an observer that is told of the end of an update once it has been validated."""
        return _Later(observer, self._when_right)

    def _run_again(self, update: int) -> None:
        slots = {step.task.stage: step.slot for step in self._forwards}
        for stage, saved in self._buffers.items():
            set_buffers(self._weights[stage].modules[slots[stage]], saved)
        self._inputs.repeating = update
        for step in self._forwards:
            set_ends_batch(step.ends_batch)
            self._repeat(step)
        self._inputs.repeating = 0

    def _when_right(self, call: Callable[[], None]) -> None:
        if self._updates.pending:
            self._late.append(call)
        else:
            call()


class _Later(Observer):
    """Hands on what happens in steps, but the end of an update when that is right."""

    def __init__(
        self, observer: Observer, when_right: Callable[[Callable[[], None]], None]
    ) -> None:
        self._observer, self._when_right = observer, when_right

    def begin(self, worker: WorkerView) -> None:
        self._observer.begin(worker)

    def before_step(self, worker: int, step: Step) -> None:
        self._observer.before_step(worker, step)

    def after_step(self, worker: int, step: Step) -> None:
        if step.task.op is Op.UPDATE:
            self._when_right(lambda: self._observer.after_step(worker, step))
        else:
            self._observer.after_step(worker, step)

    def end(self, worker: int) -> None:
        self._observer.end(worker)

    def close(self, worker: int) -> None:
        self._observer.close(worker)
