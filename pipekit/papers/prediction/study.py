"""How good predictions are, as a study: what is run, and how its tables are drawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn
from tqdm.auto import tqdm

from pipekit import plots
from pipekit.clusters import V100, flat
from pipekit.datasets import mnist
from pipekit.models import convnet, gpt, token_loss
from pipekit.papers.costs import published
from pipekit.papers.prediction.runs import (
    MethodCase,
    TrainedModel,
    cases,
    emulated_row,
    measured_row,
    memory_row,
)
from pipekit.plans import Recompute
from pipekit.profiling import Profile

ROWS = {"vgg16": 32}
"""Of a published network's microbatch; the others have 2."""

RECOMPUTATIONS: tuple[Recompute, ...] = ("never", "except_last", "always")


def published_profiles(names: Iterable[str]) -> dict[str, Profile]:
    """Return profiles of published networks, estimated for a V100, by name."""
    return {name: published(name, ROWS.get(name, 2), V100) for name in names}


def trained_models() -> list[TrainedModel]:
    """Return a convolutional network, an MLP and a GPT with data, loss and optimizer."""
    digits = mnist(rows=64, test_rows=16)
    torch.manual_seed(0)
    words = torch.randint(256, (8, 65))
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())]
    wide = nn.Sequential(*layers)
    return [
        TrainedModel(
            "convnet on MNIST",
            convnet(),
            digits.train_inputs[:32],
            digits.train_targets[:32],
            nn.CrossEntropyLoss(),
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
            1,
        ),
        TrainedModel(
            "MLP 8 x 512",
            wide,
            torch.rand(64, 512),
            torch.rand(64, 512),
            nn.MSELoss(),
            lambda p: torch.optim.SGD(p, lr=0.01),
            0,
        ),
        TrainedModel(
            "GPT 6 x 128",
            gpt(6, 128, 4, vocabulary=256, sequence=64),
            words[:, :-1],
            words[:, 1:],
            token_loss,
            torch.optim.Adam,
            2,
        ),
    ]


def emulate_all(
    profiles: Mapping[str, Profile], grid: Sequence[MethodCase], bandwidth: float
) -> pd.DataFrame:
    """Return a row for each network, method and depth, with free links and others (bytes/s)."""
    runs = [
        (name, case, links)
        for name in profiles
        for case in grid
        for links in (None, flat(case.stages, bandwidth))
    ]
    return _table(
        emulated_row(name, profiles[name], case, links)
        for name, case, links in tqdm(runs, desc="emulating", unit="run")
    )


def measure_all(
    models: Sequence[TrainedModel], grid: Sequence[MethodCase], repeats: int, passes: int
) -> pd.DataFrame:
    """Return a measured row for each model and method; see :func:`.prediction.measured_row`."""
    runs = [(model, case) for model in models for case in grid]
    return _table(
        measured_row(model, case, repeats, passes=passes)
        for model, case in tqdm(runs, desc="measuring", unit="case")
    )


def weigh_all(
    models: Sequence[TrainedModel],
    profiles: Mapping[str, Profile],
    methods: Iterable[str],
    microbatches: int,
) -> pd.DataFrame:
    """Return the peak bytes of each model, method and recomputation, on two stages.

    PipeDream cuts no minibatch: for it "all but the last microbatch" would be none.
    """
    grid = cases(methods, [2], [microbatches], 3)
    runs = [
        (model, case, recompute)
        for model in models
        for case in grid
        for recompute in RECOMPUTATIONS
        if case.method != "pipedream" or recompute != "except_last"
    ]
    return _table(
        memory_row(model, profiles[model.name], case, recompute)
        for model, case, recompute in tqdm(runs, desc="weighing", unit="case")
    )


def _table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows))


def emulated_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`emulate_all`."""
    worst = table["error"].abs().max()
    title = f"Simulated and emulated agree within {worst:.1%}"
    return _beside_found(table, "method", title, "simulated, emulated")


def measured_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`measure_all`."""
    mean = table["error"].abs().mean()
    title = f"Simulated and measured differ by {mean:.1%} on average"
    return _beside_found(table, "model", title, "simulated, measured")


def _beside_found(table: pd.DataFrame, color: str, title: str, label: str) -> go.Figure:
    return plots.points(
        table,
        x="predicted (s)",
        y="found (s)",
        color=color,
        title=title,
        label=label,
        diagonal=True,
        log=True,
    )


def split_curve(splits: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`.prediction.every_split` as rows: layers of the first stage, time, seconds."""
    return splits.assign(layers=range(1, len(splits) + 1)).melt(
        id_vars="layers",
        value_vars=["predicted (s)", "found (s)", "at one speed (s)"],
        var_name="time",
        value_name="seconds",
    )


def split_figure(splits: pd.DataFrame) -> go.Figure:
    """Draw :func:`split_curve`; the title says how far the planner's cut is from the best."""
    seconds = splits["at one speed (s)"]
    chosen = seconds[splits["chosen"]].iloc[0] / seconds.min() - 1
    batches = splits["batches"].iloc[0]
    return plots.curves(
        split_curve(splits),
        x="layers",
        y="seconds",
        color="time",
        title=f"The planner's cut is {chosen:.1%} from the best of {len(splits)}",
        label="simulated, measured",
        x_title="layers of the first stage",
        y_title=f"{batches} minibatches (s)",
    )
