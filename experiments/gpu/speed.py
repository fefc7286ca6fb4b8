"""Milliseconds a batch: pipekit's pipelines, the unsplit model, and torch's own pipelining."""

import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from experiments.gpu import peers
from experiments.gpu.network import (
    BATCHES,
    METHODS,
    MICROBATCHES,
    STAGES,
    balance,
    batch,
    network,
    pipeline,
    unsplit,
)
from pipekit import Watch, models
from pipekit.devices import synchronize

UNSPLIT = "unsplit, on one device"


def milliseconds(train: Callable[[int], object], device: torch.device) -> float:
    """Return what a batch takes: many less few, so that start and end do not count."""
    found = []
    for _ in range(5):
        took = []
        for batches in (2, 2 + 4 * BATCHES):
            synchronize(device)
            begin = time.perf_counter()
            train(batches)
            synchronize(device)
            took.append(time.perf_counter() - begin)
        found.append((took[1] - took[0]) / (4 * BATCHES) * 1e3)
    return median(found)


def of_torch(device: torch.device, width: int, rows: int, name: str, ranks: int) -> float:
    """Return what a batch takes torch's runtime by one of its schedules, on this rank."""
    model, schedule = network(width), peers.tables(STAGES, MICROBATCHES, ranks)[name]
    example = batch(rows * MICROBATCHES)
    step = peers.trainer(schedule, model, balance(model), models.token_loss, example, device)
    return milliseconds(lambda batches: [step() for _ in range(batches)], device)


def speed(places: list[str], width: int, rows: int) -> dict[str, float]:
    """Print and return how many milliseconds a batch takes whom.

    Args:
        places: the devices of the stages.
        width: of the network.
        rows: of a microbatch.
    """
    device = torch.device(places[0])
    step = unsplit(network(width), places[0], rows)
    found = {
        UNSPLIT: milliseconds(lambda batches: [step() for _ in range(batches)], device),
    }
    example = batch(rows * MICROBATCHES)
    for method in METHODS:
        for trace in (False, True):
            pipe = pipeline(network(width), method, places)
            found[f"{method}{', traced' if trace else ''}, {STAGES} stages"] = milliseconds(
                lambda n, p=pipe, t=trace: p.train([example] * n, watch=Watch(trace=t)),  # type: ignore[misc]
                device,
            )
    ranks = peers.ranks_on(STAGES, len(set(places)))
    for name in peers.tables(STAGES, MICROBATCHES, ranks):
        took = peers.on_all(ranks, device.type, of_torch, width, rows, name, ranks)
        found[f"torch.distributed.pipelining, {name}, {STAGES} stages on {ranks}"] = max(took)
    table = Table(title=f"measured: milliseconds a batch of {MICROBATCHES} microbatches")
    for column in ("who", "ms", "of the unsplit model's rate"):
        table.add_column(column)
    for who, each in found.items():
        table.add_row(who, f"{each:.2f}", f"{found[UNSPLIT] / each:.2f}")
    Console().print(table)
    return found
