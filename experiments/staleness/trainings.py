"""One training of the sweep: a network, a method, an optimizer, a rate and a seed."""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from experiments.staleness.methods import BSP, METHODS, OPTIMIZERS, scheduler
from experiments.staleness.proxies import Proxy, evaluate
from experiments.study.trainings import Course
from pipekit import Updates, Watch, oracle
from pipekit.datasets import Batch
from pipekit.devices import accelerators
from pipekit.engine import Pipeline
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.host.provenance import provenance
from pipekit.schedules import Op, Step

POINTS = 10
"""Validations of a training, equally far apart, besides that of the untrained network."""
TEST_ROWS = 256
"""Rows that are tested at a time."""
ORACLE, ENGINE = "oracle", "engine"
MOST_KEPT_BYTES = 2e9
"""The oracle keeps all weights that ever were; beyond this the engine trains."""

Trained = tuple[Sequence[float], Mapping[int, Mapping[str, Tensor]]]
"""The loss of each update, and the weights after some updates."""


@dataclass(frozen=True)
class StaleTraining:
    """All that a training depends on."""

    proxy: Proxy  # the network and its data
    method: str  # a name of METHODS
    stages: int  # of the pipeline; data parallelism: workers
    optimizer: str  # a name of OPTIMIZERS
    rate: float  # the greatest learning rate
    seed: int  # of the weights, of the rows' order, and of masks and shifts

    def at(self, rate: float, seed: int) -> "StaleTraining":
        return replace(self, rate=rate, seed=seed)

    @property
    def by_update(self) -> Proxy:
        """The proxy, in updates: one of data parallelism has the rows of as many as its workers."""
        n = self.stages if self.method == BSP else 1
        rows, updates = n * self.proxy.batch_rows, self.proxy.updates // n
        return replace(self.proxy, batch_rows=rows, updates=updates)

    @property
    def cheaper(self) -> str:
        """Who trains: the oracle, where it can keep all weights, and else the engine.

        It takes a third of the CPU time for small networks, but computes mitigations anew.
        """
        if METHODS[self.method].mitigation:
            return ENGINE
        # W(t) and its stage's copy, and the gradient, in float32.
        kept = 3 * 4 * self.proxy.parameters * self.proxy.updates
        return ORACLE if kept <= MOST_KEPT_BYTES else ENGINE

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer].make(parameters, self.rate, self.proxy.ends)

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return scheduler(optimizer, self.by_update.updates)


def train(case: StaleTraining, by: str | None = None) -> Course:
    """Carry out one training here, with one intra-op thread: oracle and engine round alike.

    ``training`` of the course is the mean loss since the point before, at the weights that the
    method reads.
    """
    by, proxy = by or case.cheaper, case.by_update
    data = proxy.data()
    batches, tests = proxy.batches(data, case.seed), data.test_batches(TEST_ROWS)
    started = time.process_time()
    model = proxy.build(case.seed)
    losses, weights = (_by_oracle if by == ORACLE else _by_engine)(case, model, batches)
    validation: list[float] = []
    for _, end in _pieces(len(batches)):
        model.load_state_dict(weights[end])
        validation.append(evaluate(model, proxy, tests))
    names = {name: getattr(case, name) for name in ("method", "stages", "optimizer", "rate")}
    about = {"proxy": case.proxy.setting, **names, "seed": case.seed}
    about |= {"updates": proxy.updates, "batch_rows": proxy.batch_rows}
    return Course.of(
        provenance("measured", case.seed, data=data.source, case=about, by=by),
        updates=[end for _, end in _pieces(len(batches))],
        validation=validation,
        training=[fmean(losses[a:b]) if a < b else None for a, b in _pieces(len(batches))],
        cpu_s=[round(time.process_time() - started, 3)] * len(validation),
    )


def _by_oracle(case: StaleTraining, model: nn.Sequential, batches: Sequence[Batch]) -> Trained:
    method = METHODS[case.method]
    if method.mitigation:
        raise ValueError(f"{case.method} is trained by the engine only")
    run = oracle.train(
        model,
        batches,
        method=method.equation,
        balance=case.proxy.balance(case.stages),
        microbatches=method.microbatches,
        flush_after=method.flush_after(len(batches)),
        optimizer=case.make_optimizer,
        lr_scheduler=case.make_scheduler,
        loss=case.proxy.loss,
        seed=case.seed,
    )
    return run.losses, dict(enumerate(run.weights))


def _by_engine(case: StaleTraining, model: nn.Sequential, batches: Sequence[Batch]) -> Trained:
    method, updates = METHODS[case.method], len(batches)
    past = WeightsAfter({end for _, end in _pieces(updates)}, dict(model.named_parameters()))
    mitigation = method.mitigation and method.mitigation(updates)
    pipeline = Pipeline(
        model,
        method.trained(case.stages, updates),
        balance=case.proxy.balance(case.stages),
        optimizer=case.make_optimizer,
        loss=case.proxy.loss,
        seed=case.seed,
        updates=Updates(lr_scheduler=case.make_scheduler, mitigation=mitigation),
    )
    losses = pipeline.train(batches, watch=Watch(trace=False, observers=[past])).losses
    for device in accelerators()[:1]:  # where the pipeline has trained, too
        model.to(device)
    return losses, past.weights


def _pieces(updates: int) -> list[tuple[int, int]]:
    """Return from which update to which each piece goes, the first one empty."""
    return [(0, 0), *pairwise(updates * point // POINTS for point in range(POINTS + 1))]


class WeightsAfter(Observer):
    """Copies every stage's weights after some updates, while the pipeline runs on, over threads.

    Validated later, they cost the pipeline no flush, and no stage waits for another.
    """

    def __init__(self, updates: Collection[int], initial: Mapping[str, Tensor]) -> None:
        self._updates = set(updates)
        self._views: dict[int, WorkerView] = {}
        self.weights: dict[int, dict[str, Tensor]] = defaultdict(dict)
        self.weights[0] = _copied(initial)

    def begin(self, worker: WorkerView) -> None:
        self._views[worker.number] = worker

    def after_step(self, worker: int, step: Step) -> None:
        task = step.task
        if task.op is Op.UPDATE and task.version in self._updates:
            layers = self._views[worker].weights[task.stage].modules[step.slot]
            self.weights[task.version] |= _copied(layers.state_dict())


def _copied(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}
