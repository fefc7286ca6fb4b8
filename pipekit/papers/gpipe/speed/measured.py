"""ResNet-101 really trained on this machine's cores (GPipe, section 4.2: one partition)."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.engine import Pipeline
from pipekit.models import resnet101
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.scenarios import Scenario, naive, pipeline
from pipekit.papers.gpipe.speed.bars import RESNET, profile_of
from pipekit.papers.gpipe.timelines.partition import least_variance
from pipekit.papers.own_seconds import own_activities
from pipekit.schedules import Op, gpipe
from pipekit.traces import Trace
from pipekit.traces.breakdown import ALL

SCENARIOS = naive(1), pipeline(1, 1), pipeline(1, 4), pipeline(2, 4)
ALONE = SCENARIOS[:2]
"""One accelerator without and with recomputation, which is what section 4.2 compares."""


def trained(
    scenarios: Sequence[Scenario], *, rows: int, pixels: int, repeats: int, seed: int
) -> list[list[Trace]]:
    """Train on random images, really: each accelerator is a core of this machine.

    A worker's operators have a single thread if OMP_NUM_THREADS is 1, as a notebook sets it.  The
    scenarios take turns, so that whatever slows the machine slows all.  Returned are the traces of
    each of ``repeats`` rounds, besides one to warm up.
    """
    batch, pipelines = _batch(rows, pixels, seed), list(map(_pipeline, scenarios))
    rounds = [[each.train([batch]).trace for each in pipelines] for _ in range(1 + repeats)]
    return rounds[1:]


def alone(*, rows: int, pixels: int, repeats: int, seed: int) -> pd.DataFrame:
    """Return the CPU seconds of a minibatch on one accelerator, a row a round (measured).

    The columns are the names of :data:`ALONE` and "update (%)", the update's share of the last
    one's seconds; arguments as for :func:`trained`.
    """
    batch = _batch(rows, pixels, seed)
    pairs = {scenario.name: (_pipeline(scenario), batch) for scenario in ALONE}
    rounds = own_activities(pairs, 1 + repeats)[1:]
    seconds = pd.DataFrame(
        {name: sum(by_activity.values()) for name, by_activity in each.items()} for each in rounds
    )
    last = ALONE[-1].name
    updates = pd.Series([each[last][Op.UPDATE.name] for each in rounds])
    return seconds.assign(**{"update (%)": 100 * updates / seconds[last]})


def _batch(rows: int, pixels: int, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(rows, 3, pixels, pixels), torch.randint(1000, (rows,))


def _pipeline(scenario: Scenario) -> Pipeline:
    return Pipeline(
        resnet101(),
        gpipe(scenario.stages, scenario.microbatches),
        balance=least_variance(profile_of(RESNET), scenario.stages),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        recompute=scenario.recompute,
    )


def fastest(rounds: Sequence[Sequence[Trace]]) -> list[Trace]:
    """Return each scenario's fastest minibatch."""
    return [min(each, key=lambda t: t.makespan_s) for each in zip(*rounds, strict=True)]


def table(scenarios: Sequence[Scenario], traces: Sequence[Trace]) -> pd.DataFrame:
    """Return a row a scenario; the first is the baseline."""
    return pd.DataFrame(
        {
            "scenario": scenario.name,
            "microbatches": scenario.microbatches,
            "seconds a minibatch": trace.makespan_s,
            "over naive-1": traces[0].makespan_s / trace.makespan_s,
            "update (%)": trace.breakdown().loc[ALL, "update"],
            "recompute (%)": trace.breakdown().loc[ALL, "recompute"],
        }
        for scenario, trace in zip(scenarios, traces, strict=True)
    )


def recomputation_findings(seconds: pd.DataFrame, how: str) -> list[Finding]:
    """Return what section 4.2 claims of one partition, by the seconds of :func:`alone`.

    ``how`` says in words in what way it was measured.
    """
    naive, recomputed = (seconds[scenario.name] for scenario in ALONE)
    over, overhead = naive / recomputed, 100 * (recomputed / naive - 1)
    throughput, price = "gpipe-sec42-pipeline1-throughput", "gpipe-sec42-recompute-overhead-25"
    return [
        Finding.measured(throughput, float(over.median()), how).over(over),
        Finding.measured(price, float(overhead.median()), how).over(overhead),
    ]


def update_finding(shares: pd.Series, emulated_update: float, how: str) -> Finding:
    """Return what section 4.2 claims of the update's time, by the shares of :func:`alone`.

    ``emulated_update`` is in percent of a step's time, K = 2.
    """
    update = (
        f"{how}; SGD with momentum, K = 1; larger minibatches make it smaller. "
        f"Emulated, for TPU-v2 and 128 images: {emulated_update:.2f} (K = 2)"
    )
    claim = "gpipe-sec42-weight-update-small"
    return Finding.measured(claim, float(shares.median()), update).over(shares)
