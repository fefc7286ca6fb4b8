"""Table 1 at a scaled-down budget: small AmoebaNets really trained, their bytes counted (4.1)."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from pipekit import plots
from pipekit.engine import Pipeline
from pipekit.models import amoebanet_d as network
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.memory import amoebanet_d
from pipekit.papers.gpipe.memory.accelerators import OPTIMIZER_STATES, held, plan_of, rmsprop
from pipekit.papers.gpipe.memory.table1 import Column
from pipekit.papers.gpipe.scenarios import Scenario, named
from pipekit.papers.timelines import memory_of
from pipekit.schedules import gpipe
from pipekit.simulation import simulate
from pipekit.traces import Memory

MB = 1e6
CLASSES = 10
BATCHES = 2
"""The optimizer's state is there from the first update on, so that the second minibatch peaks."""

Ints = Sequence[int]
Size = tuple[int, int, int]
"""L, F and the pixels of an image's side."""


def predicted(scenario: Scenario, size: Size) -> Memory:
    """Return what :func:`trained` should hold, from shapes alone (simulated)."""
    layers, filters, pixels = size
    profile = amoebanet_d.profile(layers, filters, scenario.rows, pixels, CLASSES)
    plan, schedule = plan_of(profile, scenario), scenario.schedule(BATCHES)
    return memory_of(simulate(schedule, profile, plan, optimizer_states=OPTIMIZER_STATES))


@cache
def trained(scenario: Scenario, size: Size) -> Memory:
    """Return what the workers held while the network was trained on random images (measured).

    It is cut by GPipe's partitioner.
    """
    layers, filters, pixels = size
    profile = amoebanet_d.profile(layers, filters, scenario.rows, pixels, CLASSES)
    torch.manual_seed(0)
    pipeline = Pipeline(
        network(3 * layers, filters, CLASSES),
        gpipe(scenario.stages, scenario.microbatches),
        balance=plan_of(profile, scenario),
        optimizer=rmsprop,
        loss=nn.CrossEntropyLoss(),
        devices=["cpu"] * scenario.stages,
    )
    rows = scenario.rows * scenario.microbatches
    batch = torch.rand(rows, 3, pixels, pixels), torch.randint(CLASSES, (rows,))
    return memory_of(pipeline.train([batch] * BATCHES, memory=True).trace)


def comparison(
    scenarios: Iterable[Scenario], budget_mb: float, layers: int, filters: Ints, pixels: int
) -> pd.DataFrame:
    """Look for the widest network that fits a budget twice: by the memory model, by training.

    Whatever is narrower than a network that fits is taken to fit too.  The budget is that of an
    accelerator; gradients count.

    Returns:
        Two rows a column, for the widest network that fits in training and the next: column,
        filters (F), predicted and measured (MB of the fullest worker), error (relative, of the
        prediction of the worker farthest off), fits (measured), by model and by training (the
        largest F that fits in this column; 0 for none).
    """
    rows = []
    for scenario in scenarios:
        sizes = [(layers, width, pixels) for width in filters]

        def fits(
            find: Callable[[Scenario, Size], Memory], size: Size, way: Scenario = scenario
        ) -> bool:
            return max(find(way, size).peak_bytes) <= budget_mb * MB

        model = sum(fits(predicted, size) for size in sizes)  # how many fit
        training = model  # a first guess, to train little more than two networks
        while training < len(sizes) and fits(trained, sizes[training]):
            training += 1
        while training and not fits(trained, sizes[training - 1]):
            training -= 1
        for size in sizes[max(training - 1, 0) : training + 1]:
            ours, found = (find(scenario, size).peak_bytes for find in (predicted, trained))
            mb = max(ours) / MB, max(found) / MB
            error = max((a / b - 1 for a, b in zip(ours, found, strict=True)), key=abs)
            widest = (filters[count - 1] if count else 0 for count in (model, training))
            rows.append((scenario.name, size[1], *mb, error, mb[1] <= budget_mb, *widest))
    columns = ["column", "filters", "predicted", "measured", "error", "fits"]
    return pd.DataFrame(rows, columns=[*columns, "by model", "by training"])


def activation_bytes(memory: Memory) -> float:
    """Return the sum over workers of the most that activations and recomputation held at once."""
    kept = memory.frame["activations"] + memory.frame["recompute"]
    return float(kept.groupby(memory.frame["worker"]).max().sum())


def figure(found: pd.DataFrame) -> go.Figure:
    """Draw predicted bytes over measured ones, a point a network of a :func:`comparison`."""
    columns = found.drop_duplicates("column")
    agreed = int((columns["by model"] == columns["by training"]).sum())
    title = f"Predicted within {found['error'].abs().max():.1%}; same answer in {agreed} of "
    title += f"{len(columns)} columns"
    x, y = "measured (MB)", "predicted (MB)"
    named = found.rename(columns={"measured": x, "predicted": y})
    label = "simulated, measured"
    return plots.points(named, x, y, "column", title=title, label=label, diagonal=True)


def activation_drop(naive: Scenario, pipelined: Scenario, filters: int, pixels: int) -> Finding:
    """Return how many times fewer activations GPipe keeps of AmoebaNet-D (1, F), trained (4.1).

    Without GPipe and with it, each on one accelerator.
    """
    size = 1, filters, pixels
    without, with_gpipe = (activation_bytes(trained(way, size)) for way in (naive, pipelined))
    network = Column.of("naive-1").network
    kept = [held(network, named(name))["activations"].sum() for name in ("naive-1", "pipeline-1")]
    note = (
        f"AmoebaNet-D (1, {filters}), minibatch {pipelined.minibatch} in {pipelined.microbatches} "
        f"microbatches, images of {pixels} pixels; simulated for (6, 208) and Table 1's 16 "
        f"microbatches: {kept[0] / kept[1]:.1f}"
    )
    return Finding.measured("gpipe-sec41-activation-drop", without / with_gpipe, note)
