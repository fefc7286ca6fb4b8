"""Runs an ordered list of passes: waits for what each needs, computes, and sends what it gives."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pipekit.devices import Clock, to_device
from pipekit.engine.execution.passes import Flow, FlowGradients, Passes, Target
from pipekit.engine.transports.transport import Aborted, Links
from pipekit.layers.pass_state import during, set_ends_batch
from pipekit.plans import Recompute
from pipekit.schedules import MAIN, Op, Step
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree, tree_bytes


class Ends(Protocol):
    """Where microbatches enter a pipeline and where they leave it."""

    def input(self, microbatch: int) -> Tree:
        """Return what the first stage gets."""

    def target(self, microbatch: int) -> Target | None:
        """Return what the last stage's output is compared with, or None for the output itself."""

    def output(self, microbatch: int, output: Tree) -> None:
        """Take what the last stage gave: the output, or the weighted loss."""

    def output_gradients(self, microbatch: int) -> FlowGradients | None:
        """Return the gradients of the last stage's output; None if that is a loss."""

    def input_gradients(self, microbatch: int, gradients: FlowGradients) -> None:
        """Take the gradients of the first stage's input, if it differentiates it."""


class Event(NamedTuple):
    """One thing that a worker did; see :class:`pipekit.traces.Trace`."""

    stage: int
    op: str
    microbatch: int
    version: int
    start: float
    end: float
    bytes: int


class Executor:
    """Executes passes.

    Args:
        index: the number of this worker.
        stages: the stages that live here, by index.
        recompute: which microbatches of a batch each of them recomputes.
        links: to the other workers.
        ends: of the pipeline.
        clock: of the device where this worker computes.
        first_microbatch: microbatches that earlier runs have seen.
        keeps: whether backwards follow the forwards.
        trace: whether to record events.
    """

    def __init__(
        self,
        index: int,
        stages: Mapping[int, Passes],
        recompute: Mapping[int, Recompute],
        links: Links,
        ends: Ends,
        clock: Clock,
        *,
        first_microbatch: int = 0,
        keeps: bool = True,
        trace: bool = False,
    ) -> None:
        self.index, self.stages, self.recompute = index, stages, recompute
        self.links, self.ends, self.clock, self.device = links, ends, clock, clock.device
        self._first_microbatch, self._trace = first_microbatch, trace
        self._execute: dict[Op, Callable[[Step], None]] = {
            Op.FORWARD: self._forward if keeps else self._infer
        }
        self._execute[Op.BACKWARD] = self._backward
        self._marks: list[tuple[Step, str, object, object, int]] = []
        self.sent: Counter[tuple[int, str]] = Counter()

    def run(self, steps: Sequence[Step]) -> None:
        """Execute every step.

        Raises:
            Exception: whatever a layer or the loss raises, with a note that names the task.
            Aborted: another worker failed.
        """
        with during():
            for step in steps:
                try:
                    self.links.require_peers()
                    set_ends_batch(step.ends_batch)
                    self._execute[step.task.op](step)
                except Aborted:
                    raise
                except Exception as error:
                    error.add_note(f"(raised in {step.task})")
                    raise

    def events(self) -> list[Event]:
        """Return what was done, with times in seconds on this host's monotonic clock."""
        return [
            Event(
                step.task.stage,
                op,
                step.task.microbatch,
                step.task.version,
                self.clock.seconds(start),
                self.clock.seconds(end),
                sent,
            )
            for step, op, start, end, sent in self._marks
        ]

    def _forward(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        x = self._input(step)
        target = None
        if not step.sends and (target := self.ends.target(microbatch)):
            target = target._replace(target=to_device(target.target, self.device))
        start = self.clock.now()
        output = self.stages[stage].forward(
            x,
            microbatch + self._first_microbatch,
            step.slot,
            target,
            step.recomputed(self.recompute[stage]),
        )
        self._give(step, start, output)

    def _infer(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        x = self._input(step)
        start = self.clock.now()
        self._give(step, start, self.stages[stage].infer(x, microbatch + self._first_microbatch))

    def _give(self, step: Step, start: object, output: Flow) -> None:
        end = self.clock.now()
        self._record(step, Op.FORWARD.name, start, end, self._send(step, output))
        if not step.sends:
            self.ends.output(step.task.microbatch, output.main)

    def _backward(self, step: Step) -> None:
        _, index, microbatch, _ = step.task
        stage, key = self.stages[index], microbatch + self._first_microbatch
        if step.recomputed(self.recompute[index]):
            start = self.clock.now()
            if stage.recompute(key, step.slot):
                self._record(step, RECOMPUTE, start, self.clock.now())
        gradients = self._gradients(step)
        start = self.clock.now()
        result = self._differentiate(step, key, gradients)
        end = self.clock.now()
        self._record(step, Op.BACKWARD.name, start, end, self._send(step, result))
        if not step.sends:
            self.ends.input_gradients(microbatch, result)

    def _differentiate(
        self, step: Step, key: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        stage = self.stages[step.task.stage]
        return stage.backward(key, step.slot, step.update, gradients)

    def _input(self, step: Step) -> Flow:
        if not step.receives:
            return Flow(to_device(self.ends.input(step.task.microbatch), self.device), {})
        contents = self._receive(step)
        return Flow(contents.pop(MAIN), contents)

    def _gradients(self, step: Step) -> FlowGradients | None:
        if not step.receives:
            return self.ends.output_gradients(step.task.microbatch)
        contents = self._receive(step)
        main = contents.pop(MAIN)
        return FlowGradients(main, {n: content[0] for n, content in contents.items() if content})

    def _receive(self, step: Step) -> dict[int, Any]:
        """Return the contents of a step's messages, by skip connection or MAIN."""
        return {
            message.skip: self.links.receive(message, source) for message, source in step.receives
        }

    def _send(self, step: Step, result: Flow | FlowGradients) -> int:
        """Send a step's messages; return their bytes."""
        sent = 0
        for message, receiver in step.sends:
            content: Tree = result.main
            if message.skip != MAIN:
                content = result.skips.get(message.skip)
                if isinstance(result, FlowGradients):
                    content = {} if content is None else {0: content}
            size = tree_bytes(content)  # before the receiver may do with it what it likes
            self.links.send(message, receiver, content)
            if receiver != self.index:
                self.sent[receiver, message.payload.value] += size
            sent += size
        return sent

    def _record(self, step: Step, op: str, start: object, end: object, sent: int = 0) -> None:
        if self._trace:
            self._marks.append((step, op, start, end, sent))
