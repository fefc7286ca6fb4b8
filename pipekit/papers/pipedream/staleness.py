"""PipeDream, section 3.4: which weights a minibatch sees, and 3.5 and 4: what is kept how long."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.engine import Observer, Pipeline
from pipekit.engine.transport import SCATTER, FlatBucket, PartKey
from pipekit.papers.differences import relative_difference
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Step, Task, pipedream
from pipekit.schedules.weight_slots import weight_slots
from pipekit.traces import Trace
from pipekit.traces.memory import Memory
from pipekit.trees import Tree

Weights = dict[str, Tensor]
"""Parameters by their names in the model's ``state_dict``."""
Batches = Sequence[tuple[Tensor, Tensor]]


class Study:
    """A small network on a straight pipeline, trained with plain SGD.

    Args:
        model: layers; the study has a copy of its own.
        balance: layers of each stage.
        batches: minibatches, (input, target).
        loss: of (output, target).
        lr: the learning rate.
    """

    def __init__(
        self,
        model: nn.Sequential,
        balance: Sequence[int],
        batches: Batches,
        loss: Callable[[Tensor, Tensor], Tensor],
        lr: float,
    ) -> None:
        self.model, self.balance, self.batches = copy.deepcopy(model), list(balance), batches
        self.loss, self.lr = loss, lr
        layers = [stage for stage, count in enumerate(balance) for _ in range(count)]
        self._stage = {
            name: layers[int(name.split(".")[0])] for name, _ in self.model.named_parameters()
        }

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.balance)

    def pipeline(self, method: Callable[[int], Schedule]) -> Pipeline:
        """Return the engine, ready to train by a method (minibatches to a schedule)."""
        return Pipeline(
            self.model,
            method,
            balance=self.balance,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=self.lr),
            loss=self.loss,
        )

    def engine_history(self, method: Callable[[int], Schedule]) -> list[Weights]:
        """Return the engine's weights after 0, 1, 2, ... minibatches (W(t) of section 3.4).

        W(t) does not depend on the minibatches after t, so that each is the end of a run of t.
        """
        history = [_copy(self.model)]
        for count in range(1, len(self.batches) + 1):
            pipeline = self.pipeline(method)
            pipeline.train(self.batches[:count], trace=False)
            history.append(dict(pipeline.state_dict()))
        return history

    def replay(self, delays: Sequence[int]) -> list[Weights]:
        """Return W(0), W(1), ... of w(t+1) = w(t) - lr * grad f(w_s(t - delays[s]) on stage s).

        Serially, with a list of all past weights; a version before the first is W(0).
        """
        history = [_copy(self.model)]
        for t in range(len(self.batches)):
            gradient = self.gradient(self.mixed(history, [t - delay for delay in delays]), t)
            history.append(self.stepped(history[-1], gradient))
        return history

    def mixed(self, history: Sequence[Weights], versions: Sequence[int]) -> Weights:
        """Return the weights that have version ``versions[s]`` on stage ``s``."""
        return {name: history[max(versions[stage], 0)][name] for name, stage in self._stage.items()}

    def gradient(self, weights: Weights, minibatch: int) -> Weights:
        """Return the gradient of f on a minibatch, by autograd on the undivided model."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(weights)
        inputs, targets = self.batches[minibatch]
        self.loss(model(inputs), targets).backward()
        return {
            name: parameter.grad.clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def stepped(self, weights: Weights, gradient: Weights) -> Weights:
        """Return weights - lr * gradient."""
        return {n: tensor.add(gradient[n], alpha=-self.lr) for n, tensor in weights.items()}

    def implied(self, before: Weights, after: Weights) -> Weights:
        """Return the gradient that an update has followed: (before - after) / lr."""
        return {name: (before[name] - after[name]) / self.lr for name in self._stage}

    def gradient_errors(
        self, history: Sequence[Weights], versions: Sequence[Callable[[int], int]]
    ) -> list[float]:
        """Return, for each update in steady state, how far it is from the gradient of f.

        The distance is ||g - grad f|| / ||grad f||, grad f at version ``versions[s](t)`` on stage
        ``s``.
        """
        errors = []
        for t in range(self.stages - 1, len(self.batches)):
            weights = self.mixed(history, [version(t) for version in versions])
            found = self.implied(history[t], history[t + 1])
            errors.append(relative_difference(found, self.gradient(weights, t)))
        return errors


def largest_relative_difference(a: Sequence[Weights], b: Sequence[Weights]) -> float:
    """Return the largest ||a - b|| / ||b|| over all updates."""
    return max(relative_difference(x, y) for x, y in zip(a, b, strict=True))


def stashing_delays(stages: int) -> list[int]:
    """Return how many updates old each stage's weights are, by the equation of weight stashing."""
    return [stages - 1 - stage for stage in range(stages)]


def versions(schedule: Schedule, op: Op, minibatch: int) -> list[int]:
    """Return the version that each stage reads for a pass of a minibatch (both from 0)."""
    found = {
        task.stage: task.version
        for tasks in schedule.workers
        for task in tasks
        if task.op is op and task.microbatch == minibatch
    }
    return [found[stage] for stage in range(schedule.stages)]


def interleaved_updates(schedule: Schedule, minibatch: int) -> list[int]:
    """Return, for each stage of a straight pipeline, the updates between a minibatch's F and B."""
    counts = []
    for tasks in schedule.workers:
        begin, end = (
            next(i for i, t in enumerate(tasks) if t.op is op and t.microbatch == minibatch)
            for op in (Op.FORWARD, Op.BACKWARD)
        )
        counts.append(sum(task.op is Op.UPDATE for task in tasks[begin:end]))
    return counts


def nothing_older_is_kept(schedule: Schedule) -> bool:
    """Return whether, after each task, only the newest version and those read later are alive."""
    for tasks in schedule.workers:
        newest = 0
        for position, alive in enumerate(weight_slots(tasks).alive):
            if tasks[position].op is Op.UPDATE:
                newest = tasks[position].version
            later = {t.version for t in tasks[position + 1 :] if t.op is not Op.UPDATE}
            if alive != len({newest} | {version for version in later if version <= newest}):
                return False
    return True


def discards(tasks: Sequence[Task]) -> Iterator[tuple[int, int, int | None]]:
    """Yield (version, position of its last reader, position of the update that overwrites it).

    Of each version that a worker of one stage ever reads; the position is None if it stays.
    """
    slots = weight_slots(tasks).slots
    home = {0: 0} | {
        task.version: slot for task, slot in zip(tasks, slots, strict=True) if task.op is Op.UPDATE
    }
    for version in sorted({task.version for task in tasks if task.op is not Op.UPDATE}):
        readers = [i for i, t in enumerate(tasks) if t.op is not Op.UPDATE and t.version == version]
        overwritten = (
            i
            for i, t in enumerate(tasks)
            if t.op is Op.UPDATE and t.version > version and slots[i] == home[version]
        )
        yield version, readers[-1], next(overwritten, None)


def discarded_after_fresher_backward(schedule: Schedule) -> tuple[bool, bool]:
    """Return whether every version outlives its last reader, and whether a fresher backward too.

    The second is section 4's sentence: "Parameter data is only discarded once a backward pass that
    uses fresher parameters is performed."
    """
    safe = literal = True
    for tasks in schedule.workers:
        for version, last_reader, overwritten in discards(tasks):
            if overwritten is None:
                continue
            fresher = any(
                task.op is Op.BACKWARD and task.version > version for task in tasks[:overwritten]
            )
            safe, literal = safe and overwritten > last_reader, literal and fresher
    return safe, literal


def backward_states(trace: Trace, stages: int) -> list[int]:
    """Return the most gradients of activations on each stage of a straight pipeline at once.

    A gradient is there from the end of the next stage's backward to the end of the stage's own; on
    the output stage, while its own backward runs.
    """
    passes = trace.frame.query("op == 'BACKWARD'").set_index(["stage", "microbatch"])
    most = []
    for stage in range(stages):
        own = passes.loc[stage]
        begins = passes.loc[stage + 1]["end_s"] if stage + 1 < stages else own["start_s"]
        changes = sorted(
            [(when, 1) for when in begins.tolist()] + [(when, -1) for when in own["end_s"].tolist()]
        )
        now, peak = 0, 0
        for _, change in changes:
            now += change
            peak = max(peak, now)
        most.append(peak)
    return most


def high_water_growth(memory: Memory, warm_up: float) -> float:
    """Return by how much any worker's most bytes rise after the warm-up, relative to it.

    Args:
        memory: of a run.
        warm_up: the share of the run's time that counts as warm-up.
    """
    frame = memory.frame.assign(total=memory.total)
    start, end = frame["time_s"].min(), frame["time_s"].max()
    warm = frame["time_s"] <= start + warm_up * (end - start)
    before = frame[warm].groupby("worker")["total"].max()
    after = frame[~warm].groupby("worker")["total"].max()
    return float((after / before).max() - 1)


def misplaced_parameters(model: nn.Sequential, batches: Batches, replicas: int) -> int:
    """Return how many numbers of a replicated stage's gradients are in no shard, or in several.

    The stage is really trained; a worker's shard are those numbers of a bucket that the others send
    to it to be summed (PipeDream, section 4).
    """
    shards = _Shards()
    pipeline = Pipeline(
        model,
        lambda n: pipedream([replicas], n),
        balance=[len(model)],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        loss=nn.MSELoss(),
    )
    pipeline.train(batches, observers=[shards])
    misplaced = 0
    for number, size in shards.sizes.items():
        if shards.contributors[number] < replicas:
            continue  # a last round to which not all workers have contributed
        held = torch.zeros(size, dtype=torch.int64)
        for place in range(replicas):
            for begin, end in shards.parts.get((number, place), ()):
                held[begin:end] += 1
        misplaced += int((held != 1).sum())
    return misplaced


class _Shards(Observer):
    """Notes the parts of each sum of gradients that workers send others to be added up.

    Attributes:
        parts: (begin, end) of those sent, by the sum's number and the receiver.
        sizes: numbers in each sum.
    """

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self.sizes: dict[int, int] = {}
        self._senders: dict[int, set[int]] = {}

    @property
    def contributors(self) -> dict[int, int]:
        """How many workers contributed to each sum."""
        return {number: len(senders) for number, senders in self._senders.items()}

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        if key.phase != SCATTER:
            return
        begin, number = int(part.numbers.storage_offset()), key.number
        storage = part.numbers.untyped_storage()
        self.parts.setdefault((number, receiver), set()).add((begin, begin + part.numbers.numel()))
        self.sizes[number] = storage.nbytes() // part.numbers.element_size()
        self._senders.setdefault(number, set()).add(worker)


def first_send(
    profile: Profile, plan: Plan, cluster: Cluster, minibatches: int
) -> tuple[float, float]:
    """Return when, in an emulated run, a replicated stage first sends gradients of weights.

    Returns:
        Seconds from the start of the backward that makes them: of the first message, and of the
        first end of such a backward.
    """
    watch = _FirstSend()
    emulate(pipedream(plan.replicas, minibatches), profile, plan, cluster, observers=[watch])
    seen = watch.seen
    return seen["send"] - seen["begin"], seen["end"] - seen["begin"]


class _FirstSend(Observer):
    """Notes when a replicated stage's last backward of an update first begins, sends and ends.

    Attributes:
        seen: seconds of ``time.perf_counter()``, by what happened.
    """

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._note("begin", step)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self._note("end", step)

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        self.seen.setdefault("send", time.perf_counter())

    def _note(self, what: str, step: Step) -> None:
        if step.ends_update and step.task.op is Op.BACKWARD:
            self.seen.setdefault(what, time.perf_counter())


def _copy(model: nn.Module) -> Weights:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
