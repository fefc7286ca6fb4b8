"""The worker: passes and updates in the order of a table; it knows ops, not methods."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipekit.clusters import Cluster
from pipekit.engine.buckets import Gradients
from pipekit.engine.clock import Clock
from pipekit.engine.executor import Ends, Event, Executor
from pipekit.engine.held import NOTHING, Bytes, Held
from pipekit.engine.keeper import Execute, Keeper, Resumption, Saving
from pipekit.engine.lane import Lane
from pipekit.engine.links import Links
from pipekit.engine.microbatches import Feed
from pipekit.engine.passes import Flow, FlowGradients, Loss, Target
from pipekit.engine.reducer import Reducer
from pipekit.engine.stage import Stage, StageSpec
from pipekit.schedules import Op, Step, Sum, buffer_count
from pipekit.trees import Tree, tree_map

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
        saving: how checkpoints are written, or None.
        resumption: where an interrupted run is taken up again, or None.
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
    saving: Saving | None = None
    resumption: Resumption | None = None

    @property
    def busy(self) -> list[int]:
        """The workers that have anything to do."""
        return sorted({worker for workers in self.members for worker in workers})


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
        stage.prepare(buffer_count(steps, number), job.training)
    ends = (_Training if job.training else _Evaluation)(job, feed, device, on_loss)
    worker = Worker(index, stages, job, links, ends, Clock(device))
    keeper = None
    if job.saving or job.resumption:
        keeper = Keeper(index, stages, steps, ends.losses, job.saving, job.resumption)
        worker.attend(keeper.around)
    worker.run(steps)
    if keeper:
        keeper.end()
    links.finish()
    return Report(
        [stage.to_spec() for stage in stages.values()],
        worker.events(),
        [(microbatch, loss.item()) for microbatch, loss in ends.losses],
        sum(len(stage.versions.modules) for stage in stages.values()),
        max((stage.most_pending for stage in stages.values()), default=0),
        feed.rows,
        worker.memory,
        dict(worker.sent),
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
        super().output(microbatch, torch.as_tensor(self.job.loss(output, there)))


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
            self._meet_replicas()
        try:
            super().run(steps)
        finally:
            for stage in self.trained.values():
                if stage.held:
                    stage.held.stop()
                if stage.reducer:
                    stage.reducer.close()
                    for receiver, size in stage.reducer.sent.items():
                        self.sent[receiver, "weights"] += size

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
        stage = self.trained[index]
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

    def _meet_replicas(self) -> None:
        """Get ready to sum gradients with the other workers of a stage."""
        for index, stage in self.trained.items():
            members = self.job.members[index]
            if len(members) > 1 and stage.versions.buckets():
                resumed = self.job.resumption
                stage.reducer = Reducer(
                    index,
                    self.index,
                    stage.versions,
                    self.job.sums[index],
                    self.links.exchange(members),
                    Lane(f"pipekit lane {self.index}", self.device, self.job.workers),
                    self.device,
                    first=1 + (resumed.boundary.versions[index] if resumed else 0),
                )

    def _record(
        self, step: Step, op: str, start: object, result: Flow | FlowGradients | None = None
    ) -> None:
        super()._record(step, op, start, result)
        if self.job.memory:
            self._weigh()

    def _weigh(self) -> None:
        """Note what is in memory now."""
        held = [stage.held.now() for stage in self.trained.values() if stage.held]
        self.memory.append((time.perf_counter(), sum(held, NOTHING)))
