"""A stage that waits in place of computing, and whose weights are only counted."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pipekit.devices import CPU
from pipekit.engine.execution.passes import PassConfig, Passes
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target
from pipekit.engine.execution.stage import Stage, StageConfig
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Bucket, Gradients
from pipekit.partition.partition import PartitionStage
from pipekit.schedules import Op, Step
from pipekit.simulation.costs import StageCosts

_FLOAT_BYTES = 4


class Waiter:
    """Ends waits when it is told to, on average: one that ended late shortens the next."""

    def __init__(self, times: Mapping[tuple[Op, int], float] | None = None) -> None:
        # How many times as long some tasks take, by op and microbatch or update.
        self._times = times or {}
        self._late = 0.0

    def compute(self, op: Op, number: int, start: float, seconds: float) -> None:
        """Wait for the end of a task that began at ``start`` and is profiled to take so long."""
        self.wait(start, seconds * self._times.get((op, number), 1.0))

    def wait(self, start: float, seconds: float) -> None:
        end = start + seconds - self._late
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        self._late = time.perf_counter() - end


@dataclass(frozen=True, kw_only=True)
class EmulatedStageConfig(StageConfig):
    """The config of a stage whose passes are waits, and whose tensors are never written."""

    cost: StageCosts
    # Bytes of the gradients of weights that go back to an earlier stage, by the number of the copy.
    copies: Mapping[int, float]
    # How many times as long some tasks take, by op and microbatch, or update.
    times: Mapping[tuple[Op, int], float] = field(default_factory=dict)

    @classmethod
    def emulating(cls, index: int, cost: StageCosts, copies: Mapping[int, float]) -> Self:
        """Return the config of a stage of these costs, without layers."""
        numbers = [None] * len(cost.ties)  # what stages share counts for no norm
        part = PartitionStage(index=index, module=nn.Sequential(), numbers=numbers)
        passes = PassConfig(part=part, recompute=cost.recompute)
        return cls(passes=passes, optimizer=SGD, cost=cost, copies=copies)

    def build(self, device: torch.device) -> Stage:
        weights = EmulatedWeights(self.cost, waiter := Waiter(self.times))
        return Stage(self, weights, EmulatedPasses(self, weights, waiter))


class EmulatedPasses(Passes):
    """Waits in place of passes, and gives tensors of the right size on the CPU."""

    def __init__(
        self, config: EmulatedStageConfig, weights: "EmulatedWeights", waiter: Waiter
    ) -> None:
        super().__init__(config.passes, weights.modules, CPU)
        self._cost = config.cost
        self._weights, self._waiter = weights, waiter
        self._output = _numbers(self._cost.whole.output_bytes)
        self._input = _numbers(self._cost.input_bytes)
        self._stashes = {n: _numbers(skip.bytes) for n, skip in self._cost.stashes.items()}
        self._pops = {n: _numbers(skip.bytes) for n, skip in self._cost.pops.items()}
        self._pops |= {n: _numbers(size) for n, size in config.copies.items()}

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        start = time.perf_counter()
        output = torch.empty(self._output) if target is None else torch.zeros(())
        number, seconds = step.task.microbatch, self._cost.whole.forward_s
        self._waiter.compute(Op.FORWARD, number, start, seconds)
        return StageIO(output, {n: torch.empty(size) for n, size in self._stashes.items()})

    def run_again(self, step: Step) -> StageIO:
        number, seconds = step.task.microbatch, self._cost.whole.forward_s
        self._waiter.compute(Op.FORWARD, number, time.perf_counter(), seconds)
        return StageIO((), {})

    def backward(self, step: Step, gradients: StageGradients | None) -> StageGradients:
        op, _, microbatch, _ = step.task
        start = time.perf_counter()
        main = {0: torch.empty(self._input)} if self._part.index else {}
        result = StageGradients(main, {n: torch.empty(size) for n, size in self._pops.items()})
        if op.adds_gradient:
            self._compute_gradients(op, microbatch, start)
        else:
            self._waiter.compute(op, microbatch, start, self._cost.whole.seconds(op))
        return result

    def backward_weight(self, step: Step) -> None:
        self._compute_gradients(step.task.op, step.task.microbatch, time.perf_counter())

    def _compute_gradients(self, op: Op, microbatch: int, start: float) -> None:
        """Wait for an op that gives gradients of weights: if they are summed, bucket by bucket."""
        if not self._weights.listeners:
            self._waiter.compute(op, microbatch, start, self._cost.whole.seconds(op))
            return
        seconds = [layer.seconds(op) for layer in self._cost.layers]
        behind = len(seconds)
        for bucket in [*self._cost.buckets, []]:
            first = bucket[-1] if bucket else 0
            taken = sum(seconds[first:behind])
            self._waiter.compute(op, microbatch, time.perf_counter(), taken)
            behind = first
            for number in bucket:
                for listener in self._weights.listeners:
                    listener(number)


class EmulatedWeights(WeightVersions):
    """Weights of which there is only the shape, and whose update is a wait.

    What others sum are the gradients of layers, whose numbers ``listeners`` are told when they
    would be there; ``parameters`` are what it shares with other stages.
    """

    def __init__(self, cost: StageCosts, waiter: Waiter) -> None:
        super().__init__(nn.Sequential(), SGD, None)
        self._cost, self._waiter = cost, waiter
        sizes = [_numbers(tie.bytes) for tie in cost.ties.values()]
        shared = [nn.Parameter(torch.empty(size, device="meta")) for size in sizes]
        self.parameters = [shared]
        self.listeners: list[Callable[[int], None]] = []
        self._number = 0  # of the update that is made next

    def buckets(self) -> list[Bucket]:
        return [_LayersBucket(b, self._cost.bucket_bytes(b)) for b in self._cost.buckets]

    def take(self, update: int, parameters: Iterable[int]) -> Gradients:
        return []

    def gradients(self, update: int) -> Gradients:
        super().gradients(update)
        self._number = update
        return [None] * len(self.parameters[0])

    def update(self, slot: int, gradients: Gradients) -> None:
        whole = self._cost.whole
        start = time.perf_counter()
        self._waiter.compute(Op.UPDATE, self._number, start, whole.update_s)
        if slot != self._newest:
            self._waiter.wait(time.perf_counter(), whole.copy_s)
        self._newest = slot

    def skip(self, slot: int) -> None:
        self._newest = slot

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)


class _LayersBucket(Bucket):
    def __init__(self, layers: Sequence[int], size: float) -> None:
        self.parameters, self._size = layers, _numbers(size)

    def flat(self, gradients: Gradients | None) -> FlatBucket:
        return FlatBucket(torch.empty(self._size, device="meta"), torch.empty(0, dtype=torch.uint8))

    def lend(self, total: FlatBucket) -> Iterator[tuple[int, Tensor | None]]:
        return iter(())


def _numbers(size: float) -> int:
    return math.ceil(size / _FLOAT_BYTES)
