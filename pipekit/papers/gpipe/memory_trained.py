"""Table 1 at a scaled-down budget: small AmoebaNets really trained, their bytes counted (4.1)."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from pipekit import plots
from pipekit.engine import Pipeline
from pipekit.models import amoebanet_d
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe import memory_family
from pipekit.papers.gpipe.memory import OPTIMIZER_STATES, Column, amoebanet, held, plan_of, rmsprop
from pipekit.papers.gpipe.scenarios import Scenario, named
from pipekit.papers.timelines import memory_of
from pipekit.simulation import simulate
from pipekit.traces.memory import Memory

MB = 1e6
CLASSES = 10
BATCHES = 2
"""The optimizer's state is there from the first update on, so that the second minibatch peaks."""


def predicted(scenario: Scenario, layers: int, filters: int, pixels: int) -> Memory:
    """Return what :func:`trained` should hold, from shapes alone (simulated).

    Args:
        scenario: how it is trained; cut by GPipe's partitioner.
        layers: L, normal cells of a group.
        filters: F.
        pixels: of an image's side.
    """
    profile = memory_family.profile(layers, filters, scenario.rows, pixels, CLASSES)
    trace = simulate(
        scenario.schedule(BATCHES),
        profile,
        plan_of(profile, scenario),
        optimizer_states=OPTIMIZER_STATES,
    )
    return memory_of(trace)


@cache
def trained(scenario: Scenario, layers: int, filters: int, pixels: int) -> Memory:
    """Return what the workers held while the network was trained on random images (measured).

    Trained once for the same arguments, which are those of :func:`predicted`.
    """
    profile = memory_family.profile(layers, filters, scenario.rows, pixels, CLASSES)
    torch.manual_seed(0)
    pipeline = Pipeline(
        amoebanet_d(3 * layers, filters, CLASSES),
        scenario.schedule,
        balance=plan_of(profile, scenario),
        optimizer=rmsprop,
        loss=nn.CrossEntropyLoss(),
        devices=["cpu"] * scenario.stages,
    )
    run = pipeline.train([_minibatch(scenario, pixels)] * BATCHES, memory=True)
    return memory_of(run.trace)


def comparison(
    scenarios: Iterable[Scenario],
    budget_mb: float,
    layers: int,
    filters: Sequence[int],
    pixels: int,
) -> pd.DataFrame:
    """Look for the widest network that fits a budget twice: by the memory model, by training.

    Whatever is narrower than a network that fits is taken to fit too.

    Args:
        scenarios: the columns of the table.
        budget_mb: of an accelerator, in MB; gradients count.
        layers: L of all networks.
        filters: F to try, increasing.
        pixels: of an image's side.

    Returns:
        Two rows a column, for the widest network that fits in training and the next: column,
        filters (F), predicted and measured (MB of the fullest worker), error (relative, of the
        prediction of the worker farthest off), fits (measured), by model and by training (the
        largest F that fits in this column; 0 for none).
    """
    rows = []
    for scenario in scenarios:

        def fits(
            find: Callable[[Scenario, int, int, int], Memory], width: int, way: Scenario = scenario
        ) -> bool:
            return max(find(way, layers, width, pixels).peak_bytes) <= budget_mb * MB

        model = sum(fits(predicted, width) for width in filters)  # how many fit
        training = model  # a first guess, to train little more than two networks
        while training < len(filters) and fits(trained, filters[training]):
            training += 1
        while training and not fits(trained, filters[training - 1]):
            training -= 1
        for width in filters[max(training - 1, 0) : training + 1]:
            ours = predicted(scenario, layers, width, pixels).peak_bytes
            found = trained(scenario, layers, width, pixels).peak_bytes
            errors = [a / b - 1 for a, b in zip(ours, found, strict=True)]
            rows.append(
                {
                    "column": scenario.name,
                    "filters": width,
                    "predicted": max(ours) / MB,
                    "measured": max(found) / MB,
                    "error": max(errors, key=abs),
                    "fits": max(found) <= budget_mb * MB,
                    "by model": filters[model - 1] if model else 0,
                    "by training": filters[training - 1] if training else 0,
                }
            )
    return pd.DataFrame(rows)


def activation_bytes(memory: Memory) -> float:
    """Return the sum over workers of the most that activations and recomputation held at once."""
    kept = memory.frame["activations"] + memory.frame["recompute"]
    return float(kept.groupby(memory.frame["worker"]).max().sum())


def agreed(found: pd.DataFrame) -> int:
    """Return in how many columns of a :func:`comparison` model and training found the same F."""
    columns = found.drop_duplicates("column")
    return int((columns["by model"] == columns["by training"]).sum())


def figure(found: pd.DataFrame, title: str) -> go.Figure:
    """Draw predicted bytes over measured ones, a point a network of a :func:`comparison`."""
    return plots.points(
        found,
        "measured",
        "predicted",
        "column",
        title=title,
        label="simulated, measured",
        diagonal=True,
        x_title="measured (MB)",
        y_title="predicted (MB)",
    )


def activation_drop(naive: Scenario, pipelined: Scenario, filters: int, pixels: int) -> Finding:
    """Return how many times fewer activations GPipe keeps of AmoebaNet-D (1, F), trained (4.1).

    Args:
        naive: without GPipe, on one accelerator.
        pipelined: with it, on as many.
        filters: F.
        pixels: of an image's side.
    """
    without, with_gpipe = (
        activation_bytes(trained(way, 1, filters, pixels)) for way in (naive, pipelined)
    )
    network = amoebanet(Column.of("naive-1").layers, Column.of("naive-1").filters)
    kept = [held(network, named(name))["activations"].sum() for name in ("naive-1", "pipeline-1")]
    return Finding.measured(
        "gpipe-sec41-activation-drop",
        without / with_gpipe,
        f"AmoebaNet-D (1, {filters}), minibatch {pipelined.minibatch} in {pipelined.microbatches} "
        f"microbatches, images of {pixels} pixels; simulated for (6, 208) and Table 1's 16 "
        f"microbatches: {kept[0] / kept[1]:.1f}",
    )


def _minibatch(scenario: Scenario, pixels: int) -> tuple[Tensor, Tensor]:
    rows = scenario.rows * scenario.microbatches
    return torch.rand(rows, 3, pixels, pixels), torch.randint(CLASSES, (rows,))
