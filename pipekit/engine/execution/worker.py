"""The worker: passes and updates in the order of a table; it knows ops, not methods."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipekit.devices import Clock, peak_bytes, reset_peak_bytes
from pipekit.engine.batches import Feed
from pipekit.engine.checkpoints.writer import Execute, Keeper
from pipekit.engine.config import Job
from pipekit.engine.execution.executor import Ends, Executor
from pipekit.engine.execution.passes import FlowGradients, Target
from pipekit.engine.execution.stage import Stage, StageSpec
from pipekit.engine.observers.memory_tracker import NOTHING, Bytes, Held
from pipekit.engine.observers.record import Record
from pipekit.engine.transports.transport import Links
from pipekit.engine.updates.update_synchronizer import Settling
from pipekit.layers.autocast import autocast
from pipekit.schedules import Op, Step, slot_count
from pipekit.trees import Tree, tree_map

LossCallback = Callable[[int, float], None]


@dataclass(frozen=True)
class Report:
    """What a worker leaves behind.

    Attributes:
        specs: its stages as they stand after the run.
        record: what the job asked to be recorded.
        losses: on the last stage, (microbatch, weighted loss); elsewhere empty.
        weight_buffers: weight versions that its stages held in memory.
        most_pending: most microbatches that waited for their backward at once.
        rows: rows of each microbatch.
        sent: bytes sent, by receiver and purpose ("activation", "gradient", "weights").
        loss_scales: of each update, if losses are scaled.
        skipped: updates that were not made, likewise.
    """

    specs: list[StageSpec]
    record: Record
    losses: list[tuple[int, float]]
    weight_buffers: int
    most_pending: int
    rows: list[int]
    sent: dict[tuple[int, str], int]
    loss_scales: list[float]
    skipped: list[int]


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

    Args:
        index: its number.
        steps: what to do, in order.
        specs: what its stages are made of.
        job: what is common to all workers.
        links: to the other workers.
        feed: the run's data.
        device: where it computes.
        on_loss: called by the last stage with (microbatch, weighted loss); None: nobody watches.
    """
    stages = {spec.index: spec.build(device) for spec in specs}
    for number, stage in stages.items():
        stage.prepare(slot_count(steps, number), job.training, job.loss_versions)
    ends = (_Training if job.training else _Evaluation)(job, feed, device, on_loss)
    worker = Worker(index, stages, job, links, ends, Clock(device))
    keeper = None
    if job.saving or job.resumption:
        keeper = Keeper(index, stages, steps, ends.losses, job.saving, job.resumption)
        worker.attend(keeper.around)
    if job.memory:
        reset_peak_bytes(device)
    worker.run(steps)
    if keeper:
        keeper.end()
    links.finish()
    scaler = next((stage.scaler for stage in stages.values()), None)  # all stages' are alike
    most_bytes = peak_bytes(device) if job.memory else None
    return Report(
        [stage.to_spec() for stage in stages.values()],
        Record(worker.events(), worker.memory, most_bytes),
        [(microbatch, loss.item()) for microbatch, loss in ends.losses],
        sum(len(stage.versions.modules) for stage in stages.values()),
        worker.most_pending,
        feed.rows,
        dict(worker.sent),
        scaler.scales if scaler else [],
        scaler.skipped if scaler else [],
    )


class _Training:
    """The ends of a pipeline that trains: batches come in, and losses out."""

    def __init__(
        self,
        job: Job,
        feed: Feed,
        device: torch.device,
        on_loss: Callable[[int, Tensor], None] | None,
    ) -> None:
        self.job, self.feed, self.device, self._on_loss = job, feed, device, on_loss
        self.losses: list[tuple[int, Tensor]] = []

    def input(self, microbatch: int) -> Tree:
        return self.feed.input(microbatch)

    def target(self, microbatch: int) -> Target:
        target, weight = self.feed.target(microbatch)
        return Target(self.job.loss, target, weight if self.job.mean_loss else 1.0)

    def output(self, microbatch: int, output: Tree) -> None:
        self.losses.append((microbatch, output))
        if self._on_loss is not None:
            self._on_loss(microbatch, output)

    def output_gradients(self, microbatch: int) -> None:
        """A loss has none."""

    def input_gradients(self, microbatch: int, gradients: FlowGradients) -> None:
        """Nobody asks for them."""


class _Evaluation(_Training):
    """The ends of a pipeline that evaluates: what comes out is still to be compared."""

    def output(self, microbatch: int, output: Tree) -> None:
        target, _ = self.feed.target(microbatch)
        there = tree_map(lambda t: t.to(self.device), target)
        with autocast(self.device, self.job.autocast):
            value = self.job.loss(output, there)
        super().output(microbatch, torch.as_tensor(value))


class Worker(Executor):
    """Executes one worker's steps in training or evaluation: passes and updates.

    Args:
        index: its number.
        stages: the stages that live here, by index.
        job: what is common to all workers.
        links: to the other workers.
        ends: of the pipeline.
        clock: of its device.
    """

    def __init__(
        self,
        index: int,
        stages: Mapping[int, Stage],
        job: Job,
        links: Links,
        ends: Ends,
        clock: Clock,
    ) -> None:
        super().__init__(
            index,
            stages,
            {number: stage.spec.recompute for number, stage in stages.items()},
            links,
            ends,
            clock,
            first_microbatch=job.first_microbatch,
            keeps=job.training,
            trace=job.trace,
        )
        self.job, self.trained = job, stages
        self.memory: list[tuple[float, Bytes]] = []
        self._settling: Settling | None = None  # in training
        self._pending, self.most_pending = 0, 0  # microbatches, on all stages
        self._execute[Op.UPDATE] = self._update

    def attend(self, around: Callable[[Execute], Execute]) -> None:
        """Let somebody else do something around every step."""
        self._execute = {op: around(execute) for op, execute in self._execute.items()}

    def run(self, steps: Sequence[Step]) -> None:
        """Execute every step; see :meth:`Executor.run`."""
        if self.job.memory:
            for stage in self.trained.values():
                stage.held = Held(stage.versions, self._weigh)
        if self.job.training:
            self._settling = Settling(self.index, self.trained, self.job, self.links, self.device)
        if self.job.memory:
            self._weigh()
        try:
            super().run(steps)
        finally:
            for stage in self.trained.values():
                if stage.held:
                    stage.held.stop()
            if self._settling:
                for receiver, size in self._settling.close().items():
                    self.sent[receiver, "weights"] += size

    def _forward(self, step: Step) -> None:
        super()._forward(step)
        self._pending += 1
        self.most_pending = max(self.most_pending, self._pending)

    def _backward(self, step: Step) -> None:
        super()._backward(step)
        self._pending -= 1

    def _differentiate(
        self, step: Step, key: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        reducer = self.trained[step.task.stage].reducer if step.ends_update else None
        if reducer:
            reducer.begin(step.update)
        result = super()._differentiate(step, key, gradients)
        if reducer:
            reducer.end(step.update)
        return result

    def _update(self, step: Step) -> None:
        _, index, _, version = step.task
        assert self._settling
        gradients, made = self._settling.gradients(index, version)
        stage = self.trained[index]
        start = self.clock.now()
        if made:
            stage.versions.update(step.slot, gradients)
        else:
            stage.versions.skip(step.slot)
        self._record(step, Op.UPDATE.name, start, self.clock.now())
        if stage.held:
            self._weigh()

    def _weigh(self) -> None:
        """Note what is in memory now."""
        held = [stage.held.now() for stage in self.trained.values() if stage.held]
        if self._settling:
            held.append(NOTHING._replace(gradients=self._settling.bytes))
        self.memory.append((time.perf_counter(), sum(held, NOTHING)))
