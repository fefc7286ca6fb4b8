"""One training of the sweep: a network, a method, an optimizer, a rate and a seed."""

import math
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from experiments.recorded.saved_trainings import Record
from experiments.staleness.methods import METHODS
from experiments.staleness.optimizers import OPTIMIZERS, scheduler
from experiments.staleness.proxies import Proxy, evaluate
from experiments.staleness.weights_after import WeightsAfter
from pipekit import Updates, Watch, oracle
from pipekit.datasets import Batch
from pipekit.devices import accelerators
from pipekit.engine import Pipeline
from pipekit.host.provenance import provenance

POINTS = 10
"""Validations of a training, equally far apart, besides that of the untrained network."""
TEST_ROWS = 256
"""Rows that are tested at a time."""
ORACLE, ENGINE = "oracle", "engine"
MOST_KEPT_BYTES = 2e9
"""The oracle keeps all weights that ever were; beyond this the engine trains."""


@dataclass(frozen=True)
class StaleTraining:
    """All that a training depends on; the seed is of weights, rows and their order.

    Attributes:
        proxy: the network and its data.
        method: a name of :data:`.methods.METHODS`.
        stages: of the pipeline.
        optimizer: a name of :data:`.optimizers.OPTIMIZERS`.
        rate: the greatest learning rate.
        seed: of the weights, of the rows' order, and of masks and shifts.
    """

    proxy: Proxy
    method: str
    stages: int
    optimizer: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """All of it, as a file is called: what is varied in words, the whole as a checksum."""
        whole = zlib.crc32(repr(self).encode())
        return (
            f"{self.proxy.name}_{self.method}_{self.stages}_{self.optimizer}_"
            f"{self.rate:g}_seed{self.seed}_{whole:08x}"
        )

    def at(self, rate: float, seed: int) -> "StaleTraining":
        """Return the same with another rate and seed."""
        return replace(self, rate=rate, seed=seed)

    @property
    def cheaper(self) -> str:
        """Who trains: the oracle, where it can keep all weights; its bits are the engine's.

        The oracle takes a third of the engine's CPU time an update of the smallest networks, where
        messages between threads are most of the work, and as much of the larger ones.  What is
        done about stale weights it computes anew from all past weights, which takes ever longer.
        """
        if METHODS[self.method].mitigation:
            return ENGINE
        # W(t) and its stage's copy, and the gradient, in float32.
        kept = 3 * 4 * self.proxy.parameters * self.proxy.updates
        return ORACLE if kept <= MOST_KEPT_BYTES else ENGINE


def train(case: StaleTraining, by: str | None = None) -> Record:
    """Carry out one training here.

    Each has one intra-op thread, so that oracle and engine round alike.

    Args:
        case: which.
        by: "oracle" or "engine", which give the same bits; by default :attr:`.cheaper`.

    Returns:
        ``losses`` of each update at the weights that the method reads, ``validations`` as pairs of
        updates and loss (both in nats; None: not finite), and ``cpu_s``.

    Raises:
        ValueError: the oracle is asked for a mitigation; tests/engine has it judge them all.
    """
    by = by or case.cheaper
    proxy = case.proxy
    data = proxy.data()
    batches, tests = proxy.batches(data, case.seed), data.test_batches(TEST_ROWS)
    started = time.process_time()
    course = (_by_oracle if by == ORACLE else _by_engine)(case, batches, tests)
    losses: list[float] = []
    validations: list[tuple[int, float | None]] = []
    for some, validation in course:
        losses += some
        validations.append((len(losses), _finite(validation)))
    return {
        "case": _case(case),
        "by": by,
        "losses": [_finite(loss) for loss in losses],
        "validations": validations,
        "cpu_s": round(time.process_time() - started, 3),
        "provenance": provenance("measured", case.seed, data=data.source),
    }


def _by_oracle(
    case: StaleTraining, batches: Sequence[Batch], tests: Sequence[Batch]
) -> Iterator[tuple[list[float], float]]:
    model, method = case.proxy.build(case.seed), METHODS[case.method]
    if method.mitigation:
        raise ValueError(f"{case.method} is trained by the engine only")
    run = oracle.train(
        model,
        batches,
        method=method.equation,
        balance=case.proxy.balance(case.stages),
        microbatches=method.microbatches,
        flush_after=method.flush_after(len(batches)),
        **_updates(case),
    )
    for start, end in _pieces(len(batches)):
        model.load_state_dict(run.weights[end])
        yield run.losses[start:end], evaluate(model, case.proxy, tests)


def _by_engine(
    case: StaleTraining, batches: Sequence[Batch], tests: Sequence[Batch]
) -> Iterator[tuple[list[float], float]]:
    model, method = case.proxy.build(case.seed), METHODS[case.method]
    pieces = _pieces(len(batches))
    past = WeightsAfter({end for _, end in pieces}, dict(model.named_parameters()))
    how = _updates(case)
    pipeline = Pipeline(
        model,
        method.trained(case.stages, len(batches)),
        balance=case.proxy.balance(case.stages),
        optimizer=how["optimizer"],
        loss=how["loss"],
        seed=how["seed"],
        updates=Updates(
            lr_scheduler=how["lr_scheduler"],
            mitigation=method.mitigation and method.mitigation(len(batches)),
        ),
    )
    losses = pipeline.train(batches, watch=Watch(trace=False, observers=[past])).losses
    for device in accelerators()[:1]:  # where the pipeline has trained, too
        model.to(device)
    for start, end in pieces:
        model.load_state_dict(past.weights[end])
        yield losses[start:end], evaluate(model, case.proxy, tests)


def _updates(case: StaleTraining) -> dict[str, Any]:
    """Return what engine and oracle are told of updates."""

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS[case.optimizer].make(parameters, case.rate, case.proxy.ends)

    return {
        "optimizer": optimizer,
        "lr_scheduler": partial(scheduler, updates=case.proxy.updates),
        "loss": case.proxy.loss,
        "seed": case.seed,
    }


def _pieces(updates: int) -> list[tuple[int, int]]:
    """Return from which update to which each piece goes, the first one empty."""
    ends = [updates * point // POINTS for point in range(POINTS + 1)]
    return [(0, 0), *pairwise(ends)]


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _case(case: StaleTraining) -> dict[str, Any]:
    names = ("method", "stages", "optimizer", "rate", "seed")
    return {"proxy": case.proxy.name} | {name: getattr(case, name) for name in names}
