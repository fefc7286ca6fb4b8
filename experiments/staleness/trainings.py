"""One training of the sweep: a network, a method, an optimizer, a rate and a seed."""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from torch import Tensor, nn

from experiments.staleness.methods import BSP, METHODS, OPTIMIZERS, scheduler
from experiments.staleness.proxies import Proxy, evaluate
from experiments.study.training import take
from experiments.study.trainings import Course
from pipekit import Updates, Watch
from pipekit.datasets import Batch
from pipekit.devices import accelerators
from pipekit.engine import Pipeline
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.host.provenance import provenance
from pipekit.schedules import Op, Step

POINTS = 10  # validations of a training, equally far apart, besides that of the untrained network
TEST_ROWS = 256  # rows that are tested at a time
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


def train(case: StaleTraining) -> Course:
    """Carry out one training here.

    ``training`` of the course is the mean loss since the point before, at the weights that the
    method reads.
    """
    proxy = case.by_update
    data = proxy.data()
    batches = take(data, proxy.batch_rows, proxy.updates, case.seed)
    tests = data.test_batches(TEST_ROWS)
    started = time.process_time()
    model = proxy.build(case.seed)
    losses, weights = _trained(case, model, batches)
    validation: list[float] = []
    for _, end in _pieces(len(batches)):
        model.load_state_dict(weights[end])
        validation.append(evaluate(model, proxy, tests))
    about = asdict(case) | {"proxy": case.proxy.setting}
    about |= {"updates": proxy.updates, "batch_rows": proxy.batch_rows}
    return Course.of(
        provenance("measured", case.seed, data=data.source, case=about),
        updates=[end for _, end in _pieces(len(batches))],
        validation=validation,
        training=[fmean(losses[a:b]) if a < b else None for a, b in _pieces(len(batches))],
        cpu_s=[round(time.process_time() - started, 3)] * len(validation),
    )


def _trained(case: StaleTraining, model: nn.Sequential, batches: Sequence[Batch]) -> Trained:
    method, updates = METHODS[case.method], len(batches)
    make, ends = OPTIMIZERS[case.optimizer].make, case.proxy.ends
    past = WeightsAfter({end for _, end in _pieces(updates)}, dict(model.named_parameters()))
    mitigation = method.mitigation and method.mitigation(updates)
    pipeline = Pipeline(
        model,
        method.trained(case.stages, updates),
        balance=case.proxy.balance(case.stages),
        optimizer=lambda parameters: make(parameters, case.rate, ends),
        loss=case.proxy.loss,
        seed=case.seed,
        updates=Updates(lr_scheduler=partial(scheduler, updates=updates), mitigation=mitigation),
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
