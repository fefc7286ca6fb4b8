"""Modelled compute on the real engine: stages that wait, and pass on tensors of the right size.

So sixteen workers run for real on two cores: the worker loop, the messages, their order and the
weight versions are the engine's own, and only what a stage computes is a wait of the profiled
seconds.  What the engine itself takes between two passes, some tenths of a millisecond, comes on
top.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pipekit.clusters import Cluster
from pipekit.engine.execution.passes import Flow, FlowGradients, Target
from pipekit.engine.execution.stage import Stage, StageSpec
from pipekit.engine.pipeline import Pipeline
from pipekit.engine.run import Run
from pipekit.engine.updates.buckets import Bucket, Flat, Gradients
from pipekit.engine.updates.reducer import Reducer
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.provenance import provenance
from pipekit.schedules import Schedule
from pipekit.simulation.costs import StageCosts, skips_of, stage_costs
from pipekit.skips import Skip
from pipekit.trees import Tree

_FLOAT_BYTES = 4


def emulate(
    schedule: Schedule,
    profile: Profile,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Run a schedule for real with modelled compute and links; see :func:`pipekit.simulate`.

    Messages between stages have the profiled bytes; skips go straight to their stages, as ever.
    Weights and their gradients are not there, so that a model of any size can be emulated: the
    gradients that the workers of a stage sum only have the profiled shape, and take their time on
    the links.

    Args:
        schedule: the table.
        profile: what each layer costs.
        plan: which layers each stage has, and what is recomputed; None: one profiled layer a stage.
        cluster: links to slow the messages down to; None: as fast as threads hand them over.

    Returns:
        A run whose trace is labelled "emulated"; its losses are zeros.

    Raises:
        ScheduleError: the schedule cannot be executed.
        ValueError: schedule, profile, plan and cluster do not fit together.
    """
    pipeline = _EmulatedPipeline(schedule, stage_costs(schedule, profile, plan), cluster)
    batches = [(torch.zeros(len(b), 1), torch.zeros(len(b), 1)) for b in schedule.batches]
    run = pipeline.train(batches)
    return replace(
        run,
        trace=replace(run.trace, label="emulated"),
        provenance=provenance("emulated", profile=dict(profile.provenance)),
    )


class _EmulatedPipeline(Pipeline):
    """A pipeline that has costs in place of layers."""

    def __init__(
        self, schedule: Schedule, costs: list[StageCosts], cluster: Cluster | None
    ) -> None:
        super().__init__(
            nn.Sequential(*(nn.Identity() for _ in costs)),
            schedule,
            balance=[1] * len(costs),
            optimizer=torch.optim.SGD,
            loss=nn.MSELoss(),
            devices=["cpu"] * len(schedule.workers),
            recompute=[cost.recompute for cost in costs],
            cluster=cluster,
        )
        self._costs = costs

    def _build(self, sample: Tree) -> None:
        super()._build(sample)
        self._skips = [Skip(s.name, s.source, s.destination) for s in skips_of(self._costs)]
        self._specs = [
            EmulatedSpec(**vars(spec), cost=cost)
            for spec, cost in zip(self._specs, self._costs, strict=True)
        ]


class Waiter:
    """Ends waits when it is told to, on average: one that ended late shortens the next."""

    def __init__(self) -> None:
        self._late = 0.0

    def wait(self, start: float, seconds: float) -> None:
        """Return ``seconds`` after ``start``, less what the last wait was late."""
        end = start + seconds - self._late
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        self._late = time.perf_counter() - end


@dataclass(kw_only=True)
class EmulatedSpec(StageSpec):
    """What an emulated stage is made of.

    Attributes:
        cost: the seconds and bytes of its passes.
    """

    cost: StageCosts

    def build(self, device: torch.device) -> Stage:
        """See :meth:`pipekit.engine.execution.stage.StageSpec.build`."""
        return _EmulatedStage(self, device)


class _EmulatedStage(Stage):
    """A stage whose passes are waits, and whose tensors are never written."""

    def __init__(self, spec: EmulatedSpec, device: torch.device) -> None:
        super().__init__(spec, device)
        self._cost, self._waiter = spec.cost, Waiter()
        self.versions = _EmulatedVersions(spec, self._waiter)
        self._output = _numbers(spec.cost.whole.output_bytes)
        self._input = _numbers(spec.cost.input_bytes)
        self._stashes = {n: _numbers(skip.bytes) for n, skip in spec.cost.stashes.items()}
        self._pops = {n: _numbers(skip.bytes) for n, skip in spec.cost.pops.items()}

    def forward(
        self, x: Flow, microbatch: int, buffer: int, target: Target | None, recompute: bool
    ) -> Flow:
        start = time.perf_counter()
        output = torch.empty(self._output) if target is None else torch.zeros(())
        self._waiter.wait(start, self._cost.whole.forward_s)
        return Flow(output, {n: torch.empty(size) for n, size in self._stashes.items()})

    def recompute(self, microbatch: int, buffer: int) -> bool:
        self._waiter.wait(time.perf_counter(), self._cost.whole.forward_s)
        return True

    def backward(
        self, microbatch: int, buffer: int, update: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        start = time.perf_counter()
        result = {0: torch.empty(self._input)} if self.spec.index else {}
        if self.reducer:
            self._backward_by_bucket(self.reducer)
        else:
            self._waiter.wait(start, self._cost.whole.backward_s)
        return FlowGradients(result, {n: torch.empty(size) for n, size in self._pops.items()})

    def _backward_by_bucket(self, reducer: Reducer) -> None:
        """Wait for the layers of each bucket, whose gradients can be summed from then on."""
        layers, behind = self._cost.layers, len(self._cost.layers)
        for bucket in [*self._cost.buckets, []]:
            first = bucket[-1] if bucket else 0
            seconds = sum(layer.backward_s for layer in layers[first:behind])
            self._waiter.wait(time.perf_counter(), seconds)
            behind = first
            for number in bucket:
                reducer.computed(number)


class _LayersBucket:
    """The gradients of some layers, of which there is only the shape; see :class:`Bucket`."""

    def __init__(self, layers: Sequence[int], size: float) -> None:
        self.parameters, self._size = layers, _numbers(size)

    def take(self, update: int) -> Gradients:
        return []

    def flat(self, gradients: Gradients | None) -> Flat:
        return Flat(torch.empty(self._size, device="meta"), torch.empty(0, dtype=torch.uint8))

    def gradients(self, content: Flat) -> Iterator[tuple[int, Tensor | None]]:
        return iter(())

    def release(self, content: Flat) -> None:
        """There is no memory."""


class _EmulatedVersions(WeightVersions):
    """Weights without parameters, whose update is a wait."""

    def __init__(self, spec: EmulatedSpec, waiter: Waiter) -> None:
        super().__init__(spec.layers, spec.optimizer, None)
        self._cost, self._waiter = spec.cost, waiter

    def buckets(self) -> list[Bucket]:
        return [_LayersBucket(b, self._cost.bucket_bytes(b)) for b in self._cost.buckets]

    def update(self, buffer: int, gradients: Gradients) -> None:
        whole = self._cost.whole
        copy_s = whole.copy_s if buffer != self._newest else 0.0
        self._newest = buffer
        self._waiter.wait(time.perf_counter(), whole.update_s + copy_s)


def _numbers(size: float) -> int:
    return math.ceil(size / _FLOAT_BYTES)
