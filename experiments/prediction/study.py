"""How good predictions are, as a study: what is run, and how its tables are drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn
from torch.optim import SGD, Adam

from experiments.prediction.causes import compared
from experiments.prediction.runs import (
    MethodCase,
    TrainedModel,
    cases,
    emulated_row,
    memory_row,
    slower_than_best,
)
from experiments.study.costs import published
from pipekit import plots
from pipekit.clusters import V100, flat
from pipekit.datasets import mnist
from pipekit.emulation import measured_host
from pipekit.models import convnet, gpt, token_loss
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.progress import progress_bar
from pipekit.simulation import Host

ROWS = {"vgg16": 32}
"""Of a published network's microbatch; the others have 2."""

RECOMPUTATIONS: tuple[Recompute, ...] = ("never", "except_last", "always")


def published_profiles(names: Iterable[str]) -> dict[str, Profile]:
    """Return profiles of published networks, estimated for a V100, by name."""
    return {name: published(name, ROWS.get(name, 2), V100) for name in names}


def trained_models() -> list[TrainedModel]:
    """Return a convolutional network, an MLP and a GPT with data, loss and optimizer."""
    digits = mnist(rows=64, test_rows=16)
    images = digits.train_inputs[:32], digits.train_targets[:32]
    torch.manual_seed(0)
    words = torch.randint(256, (8, 65))
    wide = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())))
    numbers = torch.rand(64, 512), torch.rand(64, 512)
    momentum, sgd = partial(SGD, lr=0.01, momentum=0.9), partial(SGD, lr=0.01)
    language = gpt(6, 128, 4, vocabulary=256, sequence=64)
    next_words = words[:, :-1], words[:, 1:]
    return [
        TrainedModel("convnet on MNIST", convnet(), *images, nn.CrossEntropyLoss(), momentum, 1),
        TrainedModel("MLP 8 x 512", wide, *numbers, nn.MSELoss(), sgd, 0),
        TrainedModel("GPT 6 x 128", language, *next_words, token_loss, Adam, 2),
    ]


def emulate_all(
    profiles: Mapping[str, Profile], grid: Sequence[MethodCase], bandwidth: float
) -> pd.DataFrame:
    """Return a row for each network, method and depth, with free links and others (bytes/s)."""
    runs = [
        (name, costs, case, links)
        for name, costs in profiles.items()
        for case in grid
        for links in (None, flat(case.stages, bandwidth))
    ]
    return pd.DataFrame(
        [emulated_row(*run) for run in progress_bar(runs, desc="emulating", unit="run")]
    )


def measure_all(
    models: Sequence[TrainedModel],
    grid: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    repeats: int,
    passes: int,
) -> pd.DataFrame:
    """Return a row for each model, method and transport; see :func:`.causes.compared`."""
    bar = progress_bar(models, desc="measuring", unit="model")
    return pd.DataFrame(
        [row for model in bar for row in compared(model, grid, hosts, repeats, passes)]
    )


def measure_hosts(transports: Iterable[str]) -> dict[str, Host]:
    """Return what this host takes beside passes, by transport."""
    bar = progress_bar(list(transports), desc="calibrating", unit="transport")
    return {transport: measured_host(transport) for transport in bar}


def hosts_table(hosts: Mapping[str, Host]) -> pd.DataFrame:
    """Return :func:`measure_hosts` as a table, a row a transport."""
    rows = [
        {"transport": transport, **asdict(host), "label": "measured"}
        for transport, host in hosts.items()
    ]
    return pd.DataFrame(rows)


def weigh_all(
    models: Sequence[TrainedModel],
    profiles: Mapping[str, Profile],
    methods: Iterable[str],
    microbatches: int,
) -> pd.DataFrame:
    """Return the peak bytes of each model, method and recomputation, on two stages.

    PipeDream cuts no minibatch: for it "all but the last microbatch" would be none.
    """
    runs = [
        (model, profiles[model.name], case, recompute)
        for model in models
        for case in cases(methods, [2], [microbatches], 3)
        for recompute in RECOMPUTATIONS
        if case.method != "pipedream" or recompute != "except_last"
    ]
    return pd.DataFrame(
        [memory_row(*run) for run in progress_bar(runs, desc="weighing", unit="case")]
    )


def emulated_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`emulate_all`."""
    title = f"Simulated and emulated agree within {table['error'].abs().max():.1%}"
    return _beside_found(table, "method", title, "simulated, emulated")


def measured_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`measure_all`."""
    decided = table[table["outcome"] == "decided"]
    title = f"Simulated and measured differ by {decided['error'].abs().mean():.1%} on average"
    return _beside_found(table, "model", title, "simulated, measured")


def _beside_found(table: pd.DataFrame, color: str, title: str, label: str) -> go.Figure:
    columns = "predicted (s)", "found (s)", color
    return plots.points(table, *columns, title=title, label=label, diagonal=True, log=True)


def split_curve(splits: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`.runs.every_split` as rows: layers of the first stage, time, seconds."""
    seconds = ["predicted (s)", "found (s)"]
    layers = splits.assign(**{"layers of the first stage": range(1, len(splits) + 1)})
    found = f"{splits['batches'].iloc[0]} minibatches (s)"
    return layers.melt("layers of the first stage", seconds, "time", found)


def split_figure(splits: pd.DataFrame) -> go.Figure:
    """Draw :func:`split_curve`; the title says how far the planner's cut is from the best."""
    curve = split_curve(splits)
    x, color, y = curve
    far = f"The planner's cut is {slower_than_best(splits):.1%} from the best of {len(splits)}"
    return plots.curves(curve, x, y, color, title=far, label="simulated, measured")
