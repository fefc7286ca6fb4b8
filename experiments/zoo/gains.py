"""What methods gain over Flush: simulated and emulated from one GPT block, and on real cores.

A worker has two blocks of a GPT, in one stage or in two.  Gains are of speed: Flush's seconds over
the method's, less one, in percent.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.zoo.closed_forms import Setting
from experiments.zoo.comparison import NAMES, schedule
from pipekit import models
from pipekit.emulation import emulate
from pipekit.engine import Pipeline
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.profiling.measured import profile
from pipekit.schedules import Schedule
from pipekit.schedules.methods.by_name import stages_a_worker
from pipekit.simulation import simulate

HIDDEN, HEADS, TOKENS, ROWS, VOCABULARY = 256, 4, 64, 4, 64
BLOCKS = 2
"""Of each worker."""

Batch = tuple[Tensor, Tensor]


def gpt(workers: int) -> nn.Sequential:
    """Return a GPT with two blocks a worker, and next to nothing else: 64 words."""
    torch.manual_seed(0)
    return models.gpt(BLOCKS * workers, HIDDEN, HEADS, vocabulary=VOCABULARY, sequence=TOKENS)


def block_profile(repeats: int = 20, others: int = 0) -> Profile:
    """Return the profile of one block, its backward's parts measured apart.

    It is the second of two: the first one's input wants no gradient.
    """
    x = torch.randn(ROWS, TOKENS, HIDDEN)
    both = profile(gpt(1)[1 : 1 + BLOCKS], x, repeats=repeats, others=others)
    return replace(both, layers=both.layers[1:], input_bytes=both.boundary_bytes(1))


def profile_of(block: Profile, made: Schedule, workers: int) -> tuple[Profile, Plan]:
    """Return the costs of a schedule whose workers have two blocks each, and where these are."""
    layers = Profile(block.layers * (BLOCKS * workers), input_bytes=block.boundary_bytes(0))
    balance = [BLOCKS * workers // made.stages] * made.stages
    homes = [len(each) for each in made.stage_workers]
    return layers, Plan.by_hand(balance, rows=layers.rows).with_replicas(homes)


def emulated(
    block: Profile,
    setting: Setting,
    batches: int = 2,
    overlap: float | None = None,
    names: Iterable[str] = NAMES,
) -> pd.DataFrame:
    """Return simulated and emulated seconds of each method, once.

    ``overlap`` is what overlapped passes take, as a share; None: they run one after the other.
    """
    rows = []
    for name in names:
        made = schedule(name, setting).take(batches)
        costs, plan = profile_of(block, made, setting.workers)
        rows.append(
            {
                "name": name,
                "method": made.name,
                "overlap": overlap if made.overlaps else None,
                "simulated_s": simulate(made, costs, plan, overlap=overlap).makespan_s,
                "emulated_s": emulate(made, costs, plan, overlap=overlap).trace.makespan_s,
            }
        )
    return pd.DataFrame(rows)


def trained(setting: Setting, batches: int = 2, names: Iterable[str] = NAMES) -> pd.DataFrame:
    """Return measured seconds of each method in training, each worker a process, once."""
    rows = []
    for name in names:
        with_method = partial(_pipeline, name, setting)
        rows.append({"name": name, "measured_s": next(_seconds(with_method(), batches, setting))})
    return pd.DataFrame(rows)


def pairs(network: str, setting: Setting, count: int, batches: int) -> pd.DataFrame:
    """Return measured seconds of Flush and ZB-H1 in turn, ``count`` times each."""
    runs = {
        name: _seconds(_pipeline(name, setting, network), batches, setting, network)
        for name in ("flush", "zb-h1")
    }
    return pd.DataFrame(
        [
            {"network": network, "pair": pair, **{name: next(each) for name, each in runs.items()}}
            for pair in range(count)
        ]
    )


def predicted(network: str, setting: Setting, batches: int, repeats: int = 10) -> dict[str, float]:
    """Return simulated seconds of Flush and ZB-H1 from a profile of the network, measured here."""
    model, (x, y), loss, balance = NETWORKS[network](setting)
    first = slice(0, len(x) // setting.microbatches)
    costs = profile(
        model, x[first], loss=loss, target=y[first], repeats=repeats, others=setting.workers - 1
    )
    plan = Plan.by_hand(balance, rows=costs.rows)
    return {
        name: simulate(schedule(name, setting).take(batches), costs, plan).makespan_s
        for name in ("flush", "zb-h1")
    }


def gain(seconds: Mapping[str, float] | pd.Series, name: str) -> float:
    """Return by how many percent a method is faster than Flush."""
    return 100 * (float(seconds["flush"]) / float(seconds[name]) - 1)


def _gpt_network(setting: Setting) -> tuple[nn.Sequential, Batch, Any, list[int]]:
    tokens = torch.randint(VOCABULARY, (ROWS * setting.microbatches, TOKENS))
    balance = [BLOCKS] * setting.workers
    balance[0] += 1
    balance[-1] += 2
    return gpt(setting.workers), (tokens, tokens.roll(-1, 1)), models.token_loss, balance


def _linear_network(setting: Setting) -> tuple[nn.Sequential, Batch, Any, list[int]]:
    torch.manual_seed(0)
    model = models.mlp(512, 4 * setting.workers)
    x = torch.randn(256 * setting.microbatches, 512)
    each = len(model) // setting.workers + 1
    balance = [each] * (setting.workers - 1)
    return model, (x, torch.randn_like(x)), nn.MSELoss(), [*balance, len(model) - sum(balance)]


NETWORKS = {"linear layers of width 512": _linear_network, "small GPT": _gpt_network}
"""What :func:`pairs` trains."""


def _pipeline(name: str, setting: Setting, network: str = "small GPT") -> Pipeline:
    model, _, loss, balance = NETWORKS[network](setting)
    if stages_a_worker(name) == BLOCKS:
        balance = [2, *[1] * (BLOCKS * setting.workers - 2), 3]
    return Pipeline(
        model,
        schedule(name, setting),
        balance=balance,
        optimizer=partial(torch.optim.SGD, lr=1e-3),
        loss=loss,
        transport="distributed",
    )


def _seconds(
    pipe: Pipeline, batches: int, setting: Setting, network: str = "small GPT"
) -> Iterator[float]:
    """Yield the makespan of one run after another; the first to warm up does not count."""
    _, batch, _, _ = NETWORKS[network](setting)
    try:
        pipe.train([batch])
        while True:
            yield pipe.train([batch] * batches).trace.makespan_s
    finally:
        pipe.close()
