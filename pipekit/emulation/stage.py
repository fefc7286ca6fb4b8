"""A stage that waits in place of computing, and whose weights are only counted."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.weights import Bucket, Gradients, Saved
from pipekit.plans import Recompute
from pipekit.schedules import Op
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.simulation.costs import StageCosts

_FLOAT_BYTES = 4


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


@dataclass(frozen=True)
class EmulatedStageConfig:
    """What an emulated stage is made of.

    Attributes:
        index: its number.
        cost: the seconds and bytes of its passes.
        overlap: what passes that run together with another one take, as a share of their seconds.
        overlapped: (op, microbatch) of these.
        copies: bytes of the gradients of weights that go back to an earlier stage with a copy, by
            the number on which they go.
    """

    index: int
    cost: StageCosts
    overlap: float = 1.0
    overlapped: frozenset[tuple[Op, int]] = frozenset()
    copies: Mapping[int, float] = field(default_factory=dict)

    @property
    def recompute(self) -> Recompute:
        """Which microbatches of a batch are recomputed."""
        return self.cost.recompute

    def build(self, device: torch.device) -> "EmulatedStage":
        """Return the stage; its tensors lie on the CPU."""
        return EmulatedStage(self)


class EmulatedStage:
    """A stage whose passes are waits, and whose tensors are never written.

    It is a :class:`pipekit.engine.execution.stage.TrainedStage`.

    Attributes:
        weights: they have a shape only.
        scaler: None: there are no losses to scale.
        numbers: of the weights that it shares with other stages, which count for no norm.
    """

    def __init__(self, config: EmulatedStageConfig) -> None:
        self._config, self._cost, self._waiter = config, config.cost, Waiter()
        self.weights = EmulatedWeights(config.cost, self._waiter)
        self.scaler = None
        self.numbers: Sequence[int | None] = [None] * len(config.cost.ties)
        self._output = _numbers(config.cost.whole.output_bytes)
        self._input = _numbers(config.cost.input_bytes)
        self._stashes = {n: _numbers(skip.bytes) for n, skip in config.cost.stashes.items()}
        self._pops = {n: _numbers(skip.bytes) for n, skip in config.cost.pops.items()}
        self._pops |= {n: _numbers(size) for n, size in config.copies.items()}

    def prepare(
        self, slots: int, loss_versions: Recurring[int] | None = None, keep: bool = False
    ) -> None:
        """Make ready for a run that needs ``slots`` weight slots."""
        self.weights.prepare(slots)

    def infer(self, x: StageIO, microbatch: int) -> StageIO:
        """Wait as long as a forward takes."""
        return self.forward(x, microbatch, 0, None, recompute=False)

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        """Wait as long as a forward takes, and return tensors of its output's bytes."""
        start = time.perf_counter()
        output = torch.empty(self._output) if target is None else torch.zeros(())
        share = self._share(Op.FORWARD, microbatch)
        self._waiter.wait(start, share * self._cost.whole.forward_s)
        return StageIO(output, {n: torch.empty(size) for n, size in self._stashes.items()})

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        """Wait as long as a forward takes."""
        self._waiter.wait(time.perf_counter(), self._cost.whole.forward_s)
        return StageIO((), {})

    def backward(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Wait as long as a backward takes; tell of each bucket's gradients at their time."""
        start = time.perf_counter()
        result = self._input_gradients()
        self._compute_gradients(Op.BACKWARD, microbatch, start)
        return result

    def backward_input(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        """Wait as long as the part of a backward for the input takes."""
        start = time.perf_counter()
        result = self._input_gradients()
        share = self._share(Op.BACKWARD_INPUT, microbatch)
        self._waiter.wait(start, share * self._cost.whole.seconds(Op.BACKWARD_INPUT))
        return result

    def backward_weight(self, microbatch: int, slot: int, update: int) -> None:
        """Wait as long as the part for the weights takes; tell of each bucket at its time."""
        self._compute_gradients(Op.BACKWARD_WEIGHT, microbatch, time.perf_counter())

    def _share(self, op: Op, microbatch: int) -> float:
        """Return how much of its seconds a pass takes."""
        together = (op, microbatch) in self._config.overlapped
        return self._config.overlap if together else 1.0

    def _input_gradients(self) -> StageGradients:
        main = {0: torch.empty(self._input)} if self._config.index else {}
        return StageGradients(main, {n: torch.empty(size) for n, size in self._pops.items()})

    def _compute_gradients(self, op: Op, microbatch: int, start: float) -> None:
        """Wait for an op that gives the gradients of the weights.

        If somebody sums them with other workers, wait for the layers of each bucket in turn, whose
        gradients can be summed from then on.
        """
        share = self._share(op, microbatch)
        if not self.weights.is_watched:
            self._waiter.wait(start, share * self._cost.whole.seconds(op))
            return
        seconds = [share * layer.seconds(op) for layer in self._cost.layers]
        behind = len(seconds)
        for bucket in [*self._cost.buckets, []]:
            first = bucket[-1] if bucket else 0
            self._waiter.wait(time.perf_counter(), sum(seconds[first:behind]))
            behind = first
            for number in bucket:
                self.weights.tell(number)


class EmulatedWeights:
    """Weights of which there is only the shape, and whose update is a wait.

    It is a :class:`pipekit.engine.updates.weights.Weights`; its trained parameters are layers, and
    its ``parameters`` what it shares with other stages.
    """

    optimizer = None
    kept_bytes = 0

    def __init__(self, cost: StageCosts, waiter: Waiter) -> None:
        self._cost, self._waiter = cost, waiter
        self._newest = 0
        shared = [torch.empty(_numbers(t.bytes), device="meta") for t in cost.ties.values()]
        self.parameters: Sequence[Sequence[Tensor]] = [shared]
        self._listeners: list[Callable[[int], None]] = []
        self.modules: list[nn.Module] = [nn.Identity()]

    @property
    def is_watched(self) -> bool:
        """Whether anybody wants to know when gradients have been computed."""
        return bool(self._listeners)

    def prepare(self, slots: int) -> None:
        """Count as many slots as a run needs."""
        self._newest = 0
        self.modules = [nn.Identity() for _ in range(slots)]

    def all_gradients(self) -> Iterator[Tensor]:
        """Yield nothing: there are no gradients."""
        return iter(())

    def buckets(self) -> list[Bucket]:
        """Return the layers whose gradients travel together."""
        return [_LayersBucket(b, self._cost.bucket_bytes(b)) for b in self._cost.buckets]

    def take(self, update: int, parameters: Iterable[int]) -> Gradients:
        """Return nothing: there are no gradients."""
        return []

    def gradients(self, update: int) -> Gradients:
        """Return nothing of what it shares with other stages: there are no gradients."""
        return [None] * len(self._cost.ties)

    def update(self, slot: int, gradients: Gradients) -> None:
        """Wait as long as an update takes, and a copy if it goes to another slot."""
        whole = self._cost.whole
        copy_s = whole.copy_s if slot != self._newest else 0.0
        self._newest = slot
        self._waiter.wait(time.perf_counter(), whole.update_s + copy_s)

    def skip(self, slot: int) -> None:
        """Make a slot the newest one."""
        self._newest = slot

    def save(self) -> Saved:
        """Return what does nothing: there are no weights to put back."""
        return Saved(lambda: None, 0)

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call ``listener`` with a layer's number when its gradients would be there."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, layer: int) -> None:
        """Tell who watches that a layer's gradients would be there."""
        for listener in self._listeners:
            listener(layer)


class _LayersBucket:
    """The gradients of some layers, of which there is only the shape."""

    def __init__(self, layers: Sequence[int], size: float) -> None:
        self.parameters, self._size = layers, _numbers(size)

    def take(self, update: int) -> Gradients:
        return []

    def flat(self, gradients: Gradients | None) -> FlatBucket:
        return FlatBucket(torch.empty(self._size, device="meta"), torch.empty(0, dtype=torch.uint8))

    def gradients(self, content: FlatBucket) -> Iterator[tuple[int, Tensor | None]]:
        return iter(())

    def release(self, content: FlatBucket) -> None:
        """Do nothing: there is no memory."""


def _numbers(size: float) -> int:
    return math.ceil(size / _FLOAT_BYTES)
