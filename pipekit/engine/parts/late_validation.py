"""Goes on after an update before all stages have agreed to it, and back if it was wrong.

Only forwards run on unvalidated weights: see :mod:`pipekit.schedules.lowering.validation`.  They
are run again from their kept inputs, some of which another stage may send again.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from pipekit.engine.execution.executor import Executor
from pipekit.engine.execution.pipeline_io import PipelineIO
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.parts.part import Execute, Part, WorkerRun
from pipekit.engine.transport import Transport
from pipekit.layers.module_state import named_buffers, set_buffers
from pipekit.layers.pass_state import set_ends_batch
from pipekit.schedules import Message, Step
from pipekit.trees import Tree, tree_map


class LateValidation(Part):
    """Wraps transport and ends, to keep inputs, and every step, to go back."""

    _execute: Execute
    _repeat: Execute
    _updates: UpdateSynchronizer

    def __init__(self, run: WorkerRun) -> None:
        validation = run.assignment.validation
        assert validation
        self._validation = validation
        self._weights = {number: stage.weights for number, stage in run.trained.items()}
        self._inputs = _RepeatableInputs(validation.again, run.transport, run.ends)
        run.transport = run.ends = self._inputs
        run.when_right = self._when_right
        self._forwards: list[Step] = []  # since the pending update
        self._buffers: dict[int, dict[str, Tensor]] = {}  # of their stages, as they were before
        self._late: list[Callable[[], None]] = []  # to be called once the update is right

    def around(self, execute: Execute, executor: Executor, updates: UpdateSynchronizer) -> Execute:
        self._execute, self._repeat, self._updates = execute, executor.repeat, updates
        return self._validated

    def _validated(self, step: Step) -> None:
        """Execute one step; before it, if need be, validate the pending update."""
        task, pending = step.task, self._updates.pending
        if pending and self._validation.before.get(task) == pending:
            self.conclude()
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

    def conclude(self) -> None:
        """Wait for the decision on the pending update, if any; if it was wrong, go back."""
        update = self._updates.pending
        if not update:
            return
        if not self._updates.validate():
            self._inputs.wrong.add(update)
            self._run_again(update)
        self._forwards.clear()
        self._buffers.clear()
        self._inputs.kept.clear()
        while self._late:
            self._late.pop(0)()

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


class _RepeatableInputs:
    """Keeps the inputs of speculative forwards, so that they can be had again.

    It is both a transport and the pipeline's ends.  ``again`` are the messages that come a second
    time if an update was wrong, with its number; ``wrong`` the updates that were; ``repeating`` the
    update whose forwards are being run again, or 0.
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
        self.kept: dict[Message | int, Tree] = {}  # by message, and by microbatch

    def input(self, microbatch: int) -> Tree:
        if self.repeating:
            return self._once_more(microbatch)
        return self._keep(microbatch, self._ends.input(microbatch))

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message; of one that comes twice, the second."""
        update = self._again.get(message)
        if self.repeating and update != self.repeating:
            return self._once_more(message)
        content = None if self.repeating else self._transport.receive(message, source)
        if update in self.wrong:
            content = self._transport.receive(message._replace(attempt=1), source)
        return self._keep(message, content)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        attempt = 1 if self.repeating else 0
        self._transport.send(message._replace(attempt=attempt), destination, content)

    def _keep(self, name: Message | int, content: Tree) -> Tree:
        if self.keeping:
            self.kept[name] = content
        return content

    def _once_more(self, name: Message | int) -> Tree:
        return tree_map(Tensor.detach, self.kept[name])
