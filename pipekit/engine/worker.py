"""The worker: runs an ordered list of steps; it knows ops, not methods."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipekit.clusters import Cluster
from pipekit.engine.buckets import Gradients
from pipekit.engine.clock import Clock
from pipekit.engine.held import NOTHING, Bytes, Held
from pipekit.engine.lane import Lane
from pipekit.engine.links import Aborted, Links
from pipekit.engine.microbatches import Feed
from pipekit.engine.reducer import Reducer
from pipekit.engine.stage import Flow, FlowGradients, Loss, Stage, StageSpec, Target
from pipekit.schedules import MAIN, Op, Step, Sum, buffer_count
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree, leaves, tree_map

_ABSENT = -1.0  # stands for the norm of a gradient that there is not
LossCallback = Callable[[int, float], None]


@dataclass(frozen=True)
class Job:
    """What all workers of a run have in common.

    Attributes:
        workers: how many there are.
        members: the workers that have each stage.
        sums: what each update of each stage sums.
        loss: of the last stage's output and the target; a number a microbatch.
        mean_loss: whether the loss is a mean over rows, so that a batch's microbatches count by
            their rows, and the batches of an update alike.
        training: False for inference.
        first_microbatch: microbatches that earlier runs have seen.
        clip_norm: largest global norm of an update's gradient, or None.
        parameters: trained parameters of the whole model.
        norm_dtype: of the norm over them all.
        trace: whether to record events.
        memory: whether to follow what lies in memory.
        cluster: links to slow the messages down to, or None.
    """

    workers: int
    members: tuple[tuple[int, ...], ...]
    sums: tuple[tuple[Sum, ...], ...]
    loss: Loss
    mean_loss: bool
    training: bool
    first_microbatch: int
    clip_norm: float | None
    parameters: int
    norm_dtype: torch.dtype
    trace: bool
    memory: bool = False
    cluster: Cluster | None = None

    @property
    def busy(self) -> list[int]:
        """The workers that have anything to do."""
        return sorted({worker for workers in self.members for worker in workers})


class Event(NamedTuple):
    """One thing that a worker did; see :class:`pipekit.traces.Trace`."""

    stage: int
    op: str
    microbatch: int
    version: int
    start: float
    end: float
    bytes: int


@dataclass(frozen=True)
class Report:
    """What a worker leaves behind.

    Attributes:
        specs: its stages as they stand after the run.
        events: what it did, if the job asked for a trace.
        losses: on the last stage, (microbatch, weighted loss); elsewhere empty.
        weight_buffers: weight versions that its stages held in memory.
        most_pending: most microbatches that waited for their backward at once.
        rows: rows of each microbatch.
        memory: (when, what its stages held), if the job asked for it.
        sent: bytes sent, by receiver and purpose ("activation", "gradient", "weights").
    """

    specs: list[StageSpec]
    events: list[Event]
    losses: list[tuple[int, float]]
    weight_buffers: int
    most_pending: int
    rows: list[int]
    memory: list[tuple[float, Bytes]]
    sent: dict[tuple[int, str], int]


def work(
    index: int,
    steps: Sequence[Step],
    specs: Sequence[StageSpec],
    job: Job,
    links: Links,
    feed: Feed,
    device: torch.device,
    on_loss: Callable[[int, Tensor], None] | None,
) -> Report:
    """Build a worker's stages, execute its steps and return what came of it.

    Args: see :class:`Worker`; ``on_loss`` None: nobody watches.
    """
    stages = {spec.index: spec.build(device) for spec in specs}
    for number, stage in stages.items():
        stage.prepare(buffer_count(steps, number), job.training)
    losses: list[tuple[int, Tensor]] = []

    def keep(microbatch: int, loss: Tensor) -> None:
        losses.append((microbatch, loss))
        if on_loss is not None:
            on_loss(microbatch, loss)

    worker = Worker(index, steps, stages, job, links, feed, device, keep)
    worker.run()
    links.finish()
    return Report(
        [stage.to_spec() for stage in stages.values()],
        worker.results(),
        [(microbatch, loss.item()) for microbatch, loss in losses],
        sum(len(stage.versions.modules) for stage in stages.values()),
        max((stage.most_pending for stage in stages.values()), default=0),
        feed.rows,
        worker.memory,
        dict(worker.sent),
    )


class Worker:
    """Executes one worker's steps.

    Args:
        index: its number.
        steps: what to do, in order.
        stages: the stages that live here, by index.
        job: what is common to all workers.
        links: to the other workers.
        feed: the run's data.
        device: where this worker computes.
        on_loss: called by the last stage with (microbatch, weighted loss).
    """

    def __init__(
        self,
        index: int,
        steps: Sequence[Step],
        stages: Mapping[int, Stage],
        job: Job,
        links: Links,
        feed: Feed,
        device: torch.device,
        on_loss: Callable[[int, Tensor], None],
    ) -> None:
        self.index, self.steps, self.stages, self.job = index, steps, stages, job
        self.links, self.feed, self.device, self.on_loss = links, feed, device, on_loss
        self.clock = Clock(device)
        self.events: list[tuple[Step, str, object, object, int]] = []
        self.memory: list[tuple[float, Bytes]] = []
        self.sent: Counter[tuple[int, str]] = Counter()

    def run(self) -> None:
        """Execute every step.

        Raises:
            Exception: whatever a layer or the loss raises, with a note that names the task.
            Aborted: another worker failed.
        """
        execute = {
            Op.FORWARD: self._forward if self.job.training else self._infer,
            Op.BACKWARD: self._backward,
            Op.UPDATE: self._update,
        }
        step = None
        if self.job.memory:
            for stage in self.stages.values():
                stage.held = Held(stage.versions, self._weigh)
        if self.job.training:
            self._meet_replicas()
        try:
            for step in self.steps:
                self.links.require_peers()
                execute[step.task.op](step)
        except Aborted:
            raise
        except Exception as error:
            error.add_note(f"(raised in {step.task if step else 'start-up'})")
            raise
        finally:
            for stage in self.stages.values():
                if stage.held:
                    stage.held.stop()
                if stage.reducer:
                    stage.reducer.close()
                    for receiver, size in stage.reducer.sent.items():
                        self.sent[receiver, "weights"] += size

    def results(self) -> list[Event]:
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
            for step, op, start, end, sent in self.events
        ]

    def _forward(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        x = self._input(step)
        target = None
        if not step.sends:
            wanted, weight = self.feed.target(microbatch)
            wanted = self._here(wanted)
            target = Target(self.job.loss, wanted, weight if self.job.mean_loss else 1.0)
        start = self.clock.now()
        output = self.stages[stage].forward(
            x,
            microbatch + self.job.first_microbatch,
            step.buffer,
            target,
            step.recomputed(self.stages[stage].spec.recompute),
        )
        self._record(step, Op.FORWARD.name, start, output)
        if step.sends:
            self._send(step, output)
        else:
            self.on_loss(microbatch, output.main)

    def _infer(self, step: Step) -> None:
        _, stage, microbatch, _ = step.task
        x = self._input(step)
        start = self.clock.now()
        output = self.stages[stage].infer(x, microbatch + self.job.first_microbatch)
        self._record(step, Op.FORWARD.name, start, output)
        if step.sends:
            self._send(step, output)
        else:
            wanted, _ = self.feed.target(microbatch)
            value = self.job.loss(output.main, self._here(wanted))
            self.on_loss(microbatch, torch.as_tensor(value))

    def _backward(self, step: Step) -> None:
        _, index, microbatch, _ = step.task
        stage, key = self.stages[index], microbatch + self.job.first_microbatch
        if step.recomputed(stage.spec.recompute):
            start = self.clock.now()
            if stage.recompute(key, step.buffer):
                self._record(step, RECOMPUTE, start)
        gradients = self._gradients(step)
        start = self.clock.now()
        if stage.reducer and step.ends_update:
            stage.reducer.begin(step.update)
        result = stage.backward(key, step.buffer, step.update, gradients)
        if stage.reducer and step.ends_update:
            stage.reducer.end(step.update)
        self._record(step, Op.BACKWARD.name, start, result)
        self._send(step, result)

    def _update(self, step: Step) -> None:
        _, index, _, version = step.task
        stage = self.stages[index]
        gradients = (stage.reducer or stage.versions).gradients(version)
        batches = self.job.sums[index][version - 1].batches
        if self.job.mean_loss and batches > 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.div_(batches)
        if self.job.clip_norm is not None:
            self._clip(gradients, self.job.clip_norm, stage, version)
        start = self.clock.now()
        stage.versions.update(step.buffer, gradients)
        self._record(step, Op.UPDATE.name, start)

    def _clip(self, gradients: Gradients, limit: float, stage: Stage, update: int) -> None:
        """Scale the gradients by the norm over all stages, summed as for the unsplit model."""
        norms = torch.zeros(self.job.parameters, dtype=self.job.norm_dtype, device=self.device)
        if self.index == self.job.members[stage.spec.index][0]:  # the others have the same
            for place, gradient in enumerate(gradients, start=stage.spec.first_parameter):
                norms[place] = _ABSENT if gradient is None else torch.linalg.vector_norm(gradient)
        norms = self.links.all_reduce(norms, update)
        total = torch.linalg.vector_norm(norms[norms != _ABSENT])
        scale = torch.clamp(limit / (total + 1e-6), max=1.0)
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(scale.to(gradient.dtype))

    def _input(self, step: Step) -> Flow:
        if not step.receives:
            return Flow(self._here(self.feed.input(step.task.microbatch)), {})
        contents = self._receive(step)
        return Flow(contents.pop(MAIN), contents)

    def _gradients(self, step: Step) -> FlowGradients | None:
        if not step.receives:
            return None
        contents = self._receive(step)
        main = contents.pop(MAIN)
        return FlowGradients(main, {n: content[0] for n, content in contents.items() if content})

    def _receive(self, step: Step) -> dict[int, Any]:
        """Return the contents of a step's messages, by skip connection or MAIN."""
        return {
            message.skip: self.links.receive(message, source) for message, source in step.receives
        }

    def _here(self, tree: Tree) -> Tree:
        if self.device.type == "cpu":
            return tree
        return tree_map(lambda t: t.to(self.device, non_blocking=True), tree)

    def _meet_replicas(self) -> None:
        """Get ready to sum gradients with the other workers of a stage."""
        for index, stage in self.stages.items():
            members = self.job.members[index]
            if len(members) > 1 and stage.versions.buckets():
                stage.reducer = Reducer(
                    index,
                    self.index,
                    stage.versions,
                    self.job.sums[index],
                    self.links.exchange(members),
                    Lane(f"pipekit lane {self.index}", self.device, self.job.workers),
                    self.device,
                )

    def _send(self, step: Step, result: Flow | FlowGradients) -> None:
        for message, receiver in step.sends:
            content: Tree = result.main
            if message.skip != MAIN:
                content = result.skips.get(message.skip)
                if isinstance(result, FlowGradients):
                    content = {} if content is None else {0: content}
            self.links.send(message, receiver, content)
            if receiver != self.index:
                purpose = "activation" if step.task.op is Op.FORWARD else "gradient"
                self.sent[receiver, purpose] += _size(content)

    def _record(
        self, step: Step, op: str, start: object, result: Flow | FlowGradients | None = None
    ) -> None:
        if self.job.trace:
            sent = 0
            if step.sends and result is not None:
                sent = _size(result.main) + _size(result.skips)
            self.events.append((step, op, start, self.clock.now(), sent))
        if self.job.memory:
            self._weigh()

    def _weigh(self) -> None:
        """Note what is in memory now."""
        held = [stage.held.now() for stage in self.stages.values() if stage.held]
        self.memory.append((time.perf_counter(), sum(held, NOTHING)))


def _size(message: Tree) -> int:
    return sum(tensor.nbytes for tensor in leaves(message))
