"""The sweep: each method's rate is tuned in the same way, and judged on other seeds.

Every arm (a method at a depth, with an optimizer, on a proxy) tries the same rates, each twice the
one before, on the tuning seeds.  The rate with the least mean validation loss at the end is chosen.
If that is, for any arm, the least or the greatest that was tried, all arms try one more there: a
late gradient's loss may have two valleys over the rates.  Besides at its own rate each arm is
judged at that of the method without delay, as papers that "did not tune" do.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from torch import Tensor, nn

from experiments import study
from experiments.staleness.methods import BSP, METHODS, MIDDLE, OPTIMIZERS, SYNC, scheduler
from experiments.staleness.proxies import Proxy, evaluate
from experiments.study.training import WeightsAfter
from pipekit import Updates, Watch
from pipekit.choices import require_choice
from pipekit.datasets import Batch
from pipekit.devices import accelerators
from pipekit.engine import Pipeline
from pipekit.host.provenance import provenance

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


def train(case: StaleTraining) -> study.Course:
    """Carry out one training here.

    ``training`` of the course is the mean loss since the point before, at the weights that the
    method reads.
    """
    proxy = case.by_update
    data = proxy.data()
    batches = study.take(data, proxy.batch_rows, proxy.updates, case.seed)
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
    return study.Course.of(
        provenance("measured", case.seed, data=data.source, case=about),
        updates=[end for _, end in _pieces(len(batches))],
        validation=validation,
        training=[fmean(losses[a:b]) if a < b else None for a, b in _pieces(len(batches))],
        cpu_s=[round(time.process_time() - started, 3)] * len(validation),
    )


def _trained(case: StaleTraining, model: nn.Sequential, batches: Sequence[Batch]) -> Trained:
    method, updates = METHODS[case.method], len(batches)
    make, ends = OPTIMIZERS[case.optimizer], case.proxy.ends
    past = WeightsAfter({end for _, end in _pieces(updates)}, model)
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


ARM = ["proxy", "method", "stages", "optimizer"]  # the columns that tell one arm from another
FIRST_TUNING_SEED = 100  # judging seeds are below, from 0
MOST_RATES = 16  # tried, lest an arm that never learns is tuned for ever
VALIDATIONS = [f"validation_{point}" for point in range(POINTS + 1)]
"""The columns of the losses in the course of a training; the last is that at its end."""
FINAL = VALIDATIONS[-1]


def run(
    proxy: Proxy,
    optimizer: str,
    methods: str,
    folder: Path,
    seeds: int = 5,
    tuning_seeds: int = 2,
    rates: int = 5,
) -> pd.DataFrame:
    """Train what the folder has not yet of some arms; return all as :func:`table` does.

    ``methods`` are words of :func:`parse_arms`; those that the optimizer is not for are left out.
    So many ``seeds`` judge, and so many ``rates`` are tried first.
    """
    require_choice("optimizer", optimizer, list(OPTIMIZERS))
    arms = parse_arms(f"{SYNC} {methods}")
    for _, stages in arms:
        proxy.balance(stages)  # refused before any training starts
    templates = [
        StaleTraining(proxy, method, stages, optimizer, 0.0, 0)
        for method, stages in dict.fromkeys(arms)
        if optimizer in (METHODS[method].optimizers or OPTIMIZERS)
    ]
    trainings = study.Trainings(train, folder)
    first = MIDDLE[optimizer] - rates // 2
    tried = _tuned(
        templates, trainings, [2.0**p for p in range(first, first + rates)], tuning_seeds
    )
    own = chosen(tried)
    best = [own[t.proxy.setting, t.method, t.stages, t.optimizer] for t in templates]
    judged = [
        template.at(rate, seed)
        for template, tuned in zip(templates, best, strict=True)
        for rate in dict.fromkeys([tuned, best[0]])
        for seed in range(seeds)
    ]
    return pd.concat([tried, table(trainings.courses(judged))], ignore_index=True)


def _tuned(
    templates: Sequence[StaleTraining],
    trainings: study.Trainings[StaleTraining],
    rates: list[float],
    tuning_seeds: int,
) -> pd.DataFrame:
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning_seeds)
    while True:
        cases = [t.at(rate, seed) for t in templates for rate in rates for seed in seeds]
        tried = table(trainings.courses(cases))
        found, least, greatest = set(chosen(tried).values()), min(rates), max(rates)
        beyond = {least: least / 2, greatest: greatest * 2}
        more = [beyond[rate] for rate in (least, greatest) if rate in found]
        if not more or len(rates) >= MOST_RATES:
            return tried
        rates = rates + more


def parse_arms(text: str) -> tuple[tuple[str, int], ...]:
    """Return arms from words such as ``2bw pipedream:4``: a method, and its pipeline's depth."""
    arms = []
    for word in text.split():
        name, _, depth = word.partition(":")
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}; choose of {', '.join(METHODS)}")
        if not METHODS[name].stages and not depth.isdigit():
            raise ValueError(f"{name} needs a depth: write {name}:4 for four stages")
        arms.append((name, METHODS[name].depth(int(depth or 0))))
    return tuple(arms)


def table(courses: Iterable[study.Course]) -> pd.DataFrame:
    """Return a row for each training.

    Columns: :data:`ARM`, ``rate``, ``seed``, ``updates``, ``batch_rows``, :data:`VALIDATIONS`
    (nats), ``training`` (the mean loss of the last tenth), ``cpu_s``, ``commit``.
    """
    frame = pd.DataFrame(
        course.provenance["case"]
        | dict(zip(VALIDATIONS, course.points["validation"], strict=True))
        | {"training": course.points["training"][-1], "cpu_s": course.points["cpu_s"][-1]}
        | {"commit": course.provenance["commit"]}
        for course in courses
    )
    return frame.astype(dict.fromkeys([*VALIDATIONS, "training"], float))


def chosen(trainings: pd.DataFrame) -> dict[tuple[str, str, int, str], float]:
    """Return the rate of each arm: that of the least mean final loss over the tuning seeds.

    A rate at which one of them diverged is never chosen, unless all are so: then the least is.
    """
    tuning = trainings[trainings["seed"] >= FIRST_TUNING_SEED]
    finals = tuning.assign(**{FINAL: tuning[FINAL].fillna(np.inf)})
    means = finals.groupby([*ARM, "rate"])[FINAL].mean()
    return {arm: float(own.idxmin()[-1]) for arm, own in means.groupby(level=ARM)}
