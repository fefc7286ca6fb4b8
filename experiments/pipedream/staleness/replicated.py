"""A replicated stage: its shards, and gradients that leave before the backward ends (section 4)."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from experiments.recorded.findings import Finding
from pipekit.clusters import Cluster, flat
from pipekit.datasets import Batch
from pipekit.devices import CPU, Clock
from pipekit.emulation import emulate
from pipekit.engine import Observer, Pipeline, Watch
from pipekit.engine.transport import SCATTER, FlatBucket, PartKey
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Step, pipedream
from pipekit.simulation import simulate
from pipekit.trees import Tree

WORKERS = (2, 3, 4, 5)
"""Of the replicated stage whose shards are looked at."""

LAYERS, REPLICAS, LAYER_BYTES = 4, 4, 30e6
"""Of the emulated stage whose first message is timed."""


def misplaced_parameters(model: nn.Sequential, batches: Sequence[Batch], replicas: int) -> int:
    """Return how many numbers of a replicated stage's gradients are in no shard, or in several.

    The stage is really trained; a worker's shard are those numbers of a bucket that the others send
    to it to be summed (PipeDream, section 4).
    """
    shards, schedule = _Shards(), pipedream([replicas])
    how: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01), "balance": [len(model)]}
    Pipeline(model, schedule, loss=nn.MSELoss(), **how).train(
        batches, watch=Watch(observers=[shards])
    )
    misplaced = 0
    for number, size in shards.sizes.items():
        if len(shards.senders[number]) < replicas:
            continue  # a last round to which not all workers have contributed
        held = torch.zeros(size, dtype=torch.int64)
        for place in range(replicas):
            for begin, end in shards.parts[number, place]:
                held[begin:end] += 1
        misplaced += int((held != 1).sum())
    return misplaced


class _Shards(Observer):
    """Notes the parts of each sum of gradients that workers send others to be added up.

    ``parts`` are (begin, end) of those sent, by the sum's number and the receiver; ``sizes`` are
    the numbers in each sum, and ``senders`` the workers that contributed.
    """

    def __init__(self) -> None:
        self.parts: defaultdict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        self.sizes: dict[int, int] = {}
        self.senders: defaultdict[int, set[int]] = defaultdict(set)

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        if key.phase != SCATTER:
            return
        begin, number = int(part.numbers.storage_offset()), key.number
        storage = part.numbers.untyped_storage()
        self.parts[number, receiver].add((begin, begin + part.numbers.numel()))
        self.sizes[number] = storage.nbytes() // part.numbers.element_size()
        self.senders[number].add(worker)


def first_send(
    profile: Profile, plan: Plan, cluster: Cluster, minibatches: int
) -> tuple[float, float]:
    """Return when, in an emulated run, a replicated stage first sends gradients of weights.

    Seconds from the start of the backward that makes them: of the first message, and of the first
    end of such a backward.
    """
    watch = _FirstSend()
    emulate(pipedream(plan.replicas).take(minibatches), profile, plan, cluster, observers=[watch])
    seen = watch.seen
    return seen["send"] - seen["begin"], seen["end"] - seen["begin"]


class _FirstSend(Observer):
    """Notes when a replicated stage's last backward of an update first begins, sends and ends."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self._clock = Clock(CPU)

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self._note("begin", step)

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self._note("end", step)

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        self._see("send")

    def _note(self, what: str, step: Step) -> None:
        if step.ends_update and step.task.op is Op.BACKWARD:
            self._see(what)

    def _see(self, what: str) -> None:
        self.seen.setdefault(what, self._clock.seconds(self._clock.now()))


def shards_finding(model: nn.Sequential, batches: Sequence[Batch]) -> Finding:
    """Return :func:`misplaced_parameters` of real trainings on each of :data:`WORKERS`."""
    wrong = sum(misplaced_parameters(model, batches[: 2 * r], r) for r in WORKERS)
    note = "really trained on 2, 3, 4 and 5 workers: numbers sent to be summed, by receiver"
    return Finding.exact("pipedream-replicated-update-path", wrong, note)


def emulated_stage(layer_s: float) -> tuple[Profile, Plan, Cluster]:
    """Return a stage on four workers, on links that take a layer's backward for its sum."""
    costs = Profile.uniform(LAYERS, layer_s, layer_s, parameter_bytes=LAYER_BYTES)
    plan = Plan.by_hand([LAYERS], replicas=[REPLICAS])
    return costs, plan, flat(REPLICAS, 2 * (REPLICAS - 1) / REPLICAS * LAYER_BYTES / layer_s)


def simulated_first_sum(layer_s: float) -> float:
    """Return when the first sum of :func:`emulated_stage` begins, in seconds of its backward."""
    trace = simulate(pipedream([REPLICAS]).take(2 * REPLICAS), *emulated_stage(layer_s))
    assert trace.transfers is not None  # with a cluster there always are
    sums = trace.transfers.query("purpose == 'weights'")["start_s"]
    return float(sums.min() - trace.frame.query("op == 'BACKWARD'")["start_s"].min())


def first_send_finding(layer_s: float) -> Finding:
    """Return when :func:`emulated_stage` first sends, and when that backward ends (emulated)."""
    sent, ended = first_send(*emulated_stage(layer_s), 2 * REPLICAS)
    layers = f"{LAYERS} layers of {1e3 * layer_s:g} ms, on {REPLICAS} workers"
    note = f"after the start of the backward of {layers}"
    return Finding.emulated("pipedream-wfbp-per-layer-send", [sent, ended], note)
