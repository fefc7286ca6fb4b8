"""A small network trained by the engine, and by PipeDream's equations written out (section 3.4).

Minibatches and stages count from 0, and version v of the weights has v updates in it.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.pipedream.timelines import MessageCounter
from experiments.study.training import Tensors, WeightsAfter, plain_gradients, relative_difference
from pipekit.clusters import Cluster
from pipekit.datasets import Batch
from pipekit.devices import CPU, Clock
from pipekit.emulation import emulate
from pipekit.engine import Observer, Pipeline, Watch
from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.transport import SCATTER, FlatBucket, PartKey
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Step, Task, model_parallel, pipedream
from pipekit.schedules.lowering.weight_slots import weight_slots
from pipekit.trees import Tree

STAGES = 4  # as in Figure 8, one machine each

SGD, NAIVE, STASHING, SYNCED = "no pipelining", "no stashing", "stashing", "vertical sync"
PIPELINED = NAIVE, STASHING, SYNCED

METHODS: Mapping[str, Schedule] = {
    SGD: model_parallel(STAGES),
    NAIVE: pipedream(STAGES, stashing=False),
    STASHING: pipedream(STAGES),
    SYNCED: pipedream(STAGES, vertical_sync=True),
}


@dataclass(frozen=True)
class SmallTraining:
    """Plain SGD of a network with one linear and one nonlinear layer a stage."""

    model: nn.Sequential
    batches: Sequence[Batch]
    lr: float
    loss: nn.Module = field(default_factory=nn.MSELoss)

    @classmethod
    def random(
        cls, dtype: torch.dtype, minibatches: int, width: int, lr: float, seed: int
    ) -> "SmallTraining":
        torch.manual_seed(seed)
        layers = [layer for _ in range(STAGES) for layer in (nn.Linear(width, width), nn.Tanh())]
        shape = 8, width
        data = [
            (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype))
            for _ in range(minibatches)
        ]
        return cls(nn.Sequential(*layers).to(dtype), data, lr)

    @property
    def how(self) -> dict[str, Any]:
        sgd = partial(torch.optim.SGD, lr=self.lr)
        return {"balance": [2] * STAGES, "optimizer": sgd, "loss": self.loss}

    def engine(self, schedule: Schedule) -> list[Tensors]:
        """Return the engine's W(0), W(1), ... (section 3.4)."""
        updates = range(len(self.batches) + 1)
        past = WeightsAfter(updates, self.model)
        pipeline = Pipeline(self.model, schedule, **self.how)
        pipeline.train(self.batches, watch=Watch(trace=False, observers=[past]))
        return [past.weights[update] for update in updates]

    def replayed(self, delays: Sequence[int]) -> list[Tensors]:
        """Return W(0), W(1), ... of w(t+1) = w(t) - lr * grad f(w_s(t - delays[s]) on stage s)."""
        history: list[Tensors] = [self.model.state_dict()]
        for t in range(len(self.batches)):
            history.append(self.stepped(history[-1], self.gradient(history, delays, t)))
        return history

    def gradient(self, history: Sequence[Tensors], delays: Sequence[int], t: int) -> Tensors:
        """Return autograd's gradient of f on minibatch t, the weights so late on each stage."""
        mixed = {
            name: history[max(t - delays[int(name.split(".")[0]) // 2], 0)][name]
            for name in history[0]
        }
        model = copy.deepcopy(self.model)
        model.load_state_dict(mixed)
        return plain_gradients(model, self.batches[t], self.loss)

    def stepped(self, weights: Tensors, gradient: Tensors) -> Tensors:
        return {n: tensor.add(gradient[n], alpha=-self.lr) for n, tensor in weights.items()}

    def gradient_errors(self, history: Sequence[Tensors], delays: Sequence[int]) -> list[float]:
        """Return how far what each update in steady state has followed is from :meth:`gradient`."""
        errors = []
        for t in range(STAGES - 1, len(self.batches)):
            followed = {n: (w - history[t + 1][n]) / self.lr for n, w in history[t].items()}
            errors.append(relative_difference(followed, self.gradient(history, delays, t)))
        return errors


def farthest(a: Sequence[Tensors], b: Sequence[Tensors]) -> float:
    """Return the largest ||a - b|| / ||b|| over all updates."""
    return max(relative_difference(x, y) for x, y in zip(a, b, strict=True))


def overwritten(tasks: Sequence[Task]) -> Iterator[tuple[int, int, int]]:
    """Yield (version, position of its last reader, position of the update that overwrites it)."""
    readers = {t.version: at for at, t in enumerate(tasks) if t.op is not Op.UPDATE}
    held = {0: 0}  # the version in each slot
    for position, (task, slot) in enumerate(zip(tasks, weight_slots(tasks).slots, strict=True)):
        if task.op is Op.UPDATE:
            if (version := held.get(slot)) in readers:
                yield version, readers[version], position
            held[slot] = task.version


def misplaced_parameters(model: nn.Sequential, batches: Sequence[Batch], replicas: int) -> int:
    """Return how many numbers of a replicated stage's gradients are in no shard, or in several.

    Of each sum, of a whole round, every worker sends the others all but its own shard.
    """
    parts, sgd = _Parts(), partial(torch.optim.SGD, lr=0.01)
    schedule, loss = pipedream([replicas]), nn.MSELoss()
    pipeline = Pipeline(model, schedule, balance=[len(model)], optimizer=sgd, loss=loss)
    pipeline.train(batches, watch=Watch(observers=[parts]))
    times = (torch.stack(sent).sum(0) for sent in parts.seen.values())
    return sum(int((each != replicas - 1).sum()) for each in times)


class _Parts(Observer):
    """Notes what workers send others to be added up."""

    def __init__(self) -> None:
        # By the sum's number, of each message: 1 where it has a number of the sum, else 0.
        self.seen: defaultdict[int, list[Tensor]] = defaultdict(list)

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        if key.phase == SCATTER:
            numbers, begin = part.numbers, int(part.numbers.storage_offset())
            held = torch.zeros(numbers.untyped_storage().nbytes() // numbers.element_size())
            held[begin : begin + numbers.numel()] = 1
            self.seen[key.number].append(held)


def first_send(
    profile: Profile, plan: Plan, cluster: Cluster, minibatches: int
) -> tuple[float, float]:
    """Return when, in an emulated run, a replicated stage first sends gradients of weights.

    Seconds from the start of the backward that makes them: of the first message, and of its end.
    """
    seen = _FirstSend()
    emulate(pipedream(plan.replicas).take(minibatches), profile, plan, cluster, observers=[seen])
    return seen.at["send"] - seen.at["start"], seen.at["done"] - seen.at["start"]


class _FirstSend(Observer):
    """Notes when a replicated stage's last backward of an update first starts, sends, is done."""

    def __init__(self) -> None:
        self.at, self._clock = dict[str, float](), Clock(CPU)

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._note("start", step)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self._note("done", step)

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        self._note("send")

    def _note(self, what: str, step: Step | None = None) -> None:
        if step is None or (step.ends_update and step.task.op is Op.BACKWARD):
            self.at.setdefault(what, self._clock.seconds(self._clock.now()))


def coordination(
    build: Callable[[], Pipeline], epochs: Sequence[Sequence[Batch]], folder: Path
) -> tuple[int, int]:
    """Return how many messages more workers send with a checkpoint after every epoch.

    And the most files of a stage and epoch (-1 if one has none), of which the last two epochs stay.
    """

    def messages(folder: Path | None) -> int:
        pipeline, counter = build(), MessageCounter()
        watch = Watch(trace=False, observers=[counter])
        for batches in epochs:
            pipeline.train(batches, watch=watch, checkpoints=folder)
        return counter.seen.total()

    extra = messages(folder) - messages(None)
    parts = [(home, part.stage) for home in folder.iterdir() for part in checkpoints.parts_of(home)]
    is_whole = len({*parts}) == len(epochs) * STAGES
    return extra, max(Counter(parts).values()) if is_whole else -1
