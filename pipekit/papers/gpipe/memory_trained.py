"""Table 1 at a scaled-down budget: small AmoebaNets really trained, their bytes counted (4.1)."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.engine import Pipeline
from pipekit.models import amoebanet_d
from pipekit.papers.gpipe import memory_family
from pipekit.papers.gpipe.memory import OPTIMIZER_STATES, Setting, rmsprop
from pipekit.simulation import simulate
from pipekit.traces.memory import Memory

MB = 1e6
CLASSES = 10
BATCHES = 2
"""The optimizer's state is there from the first update on, so that the second minibatch peaks."""


def predicted(setting: Setting, layers: int, filters: int, pixels: int) -> Memory:
    """Return what :func:`trained` should hold, from shapes alone (simulated).

    Args:
        setting: how it is trained; cut by GPipe's partitioner.
        layers: L, normal cells of a group.
        filters: F.
        pixels: of an image's side.
    """
    profile = memory_family.profile(layers, filters, setting.rows, pixels, CLASSES)
    trace = simulate(
        setting.schedule(BATCHES),
        profile,
        setting.plan(profile),
        optimizer_states=OPTIMIZER_STATES,
    )
    assert trace.memory is not None  # it simulates with memory always
    return trace.memory


@cache
def trained(setting: Setting, layers: int, filters: int, pixels: int) -> Memory:
    """Return what the workers held while the network was trained on random images (measured).

    Trained once for the same arguments, which are those of :func:`predicted`.
    """
    profile = memory_family.profile(layers, filters, setting.rows, pixels, CLASSES)
    torch.manual_seed(0)
    pipeline = Pipeline(
        amoebanet_d(3 * layers, filters, CLASSES),
        setting.schedule,
        balance=setting.plan(profile),
        optimizer=rmsprop,
        loss=nn.CrossEntropyLoss(),
        devices=["cpu"] * setting.stages,
    )
    run = pipeline.train([_minibatch(setting, pixels)] * BATCHES, memory=True)
    assert run.trace.memory is not None  # it was asked for
    return run.trace.memory


def comparison(
    settings: Iterable[Setting],
    budget_mb: float,
    layers: int,
    filters: Sequence[int],
    pixels: int,
) -> pd.DataFrame:
    """Look for the widest network that fits a budget twice: by the memory model, by training.

    Whatever is narrower than a network that fits is taken to fit too.

    Args:
        settings: the columns of the table.
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
    for setting in settings:

        def fits(
            find: Callable[[Setting, int, int, int], Memory], width: int, way: Setting = setting
        ) -> bool:
            return max(find(way, layers, width, pixels).peak_bytes) <= budget_mb * MB

        model = sum(fits(predicted, width) for width in filters)  # how many fit
        training = model  # a first guess, to train little more than two networks
        while training < len(filters) and fits(trained, filters[training]):
            training += 1
        while training and not fits(trained, filters[training - 1]):
            training -= 1
        for width in filters[max(training - 1, 0) : training + 1]:
            ours = predicted(setting, layers, width, pixels).peak_bytes
            found = trained(setting, layers, width, pixels).peak_bytes
            errors = [a / b - 1 for a, b in zip(ours, found, strict=True)]
            rows.append(
                {
                    "column": setting.name,
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
    held = memory.frame["activations"] + memory.frame["recompute"]
    return float(held.groupby(memory.frame["worker"]).max().sum())


def _minibatch(setting: Setting, pixels: int) -> tuple[Tensor, Tensor]:
    rows = setting.rows * setting.microbatches
    return torch.rand(rows, 3, pixels, pixels), torch.randint(CLASSES, (rows,))
