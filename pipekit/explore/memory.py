"""What a plan keeps in every worker's memory, against what the device has."""

import math
from typing import Any

import ipywidgets as widgets

from pipekit.clusters import flat, papers
from pipekit.explore.models import MODELS, estimated
from pipekit.explore.page.controls import choice, steps, whole
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.explore.timeline import made
from pipekit.planning import plan
from pipekit.planning.balanced import Of
from pipekit.plans import Recompute
from pipekit.plots import units
from pipekit.schedules.methods.by_name import METHODS, stages_a_worker
from pipekit.simulation import simulate
from pipekit.traces import Trace

DEVICES = {device.name: device for device in (papers.K80, papers.TITAN_X, papers.V100, papers.P40)}
OPTIMIZERS = {"SGD": 0, "SGD, momentum": 1, "Adam": 2}
"""Tensors of a parameter's size that each keeps for it."""
CUTS: dict[str, Of] = {"equal time": "time", "equal size": "size"}


def see(
    model: str = "gpt-355M",
    method: str = "2bw",
    cut: str = "equal time",
    stages: int = 4,
    rows: int = 4,
    microbatches: int = 8,
    batches: int = 2,
    recompute: Recompute = "never",
    optimizer: str = "Adam",
    device: str = papers.V100.name,
) -> View:
    """Return the simulated bytes of every worker over time.

    Args:
        model: one of :data:`MODELS`, in float32.
        method: one of :data:`pipekit.schedules.methods.by_name.METHODS`.
        cut: one of :data:`CUTS`: what the stages have about equally much of.
        stages: how many, one on a worker; interleaved, there are twice as many.
        rows: of a microbatch.
        microbatches: of a batch; methods that do not cut minibatches get as many whole ones.
        batches: how many.
        recompute: which microbatches are computed again.
        optimizer: one of :data:`OPTIMIZERS`.
        device: one of :data:`DEVICES`.

    Raises:
        ValueError: the method, or so many stages, cannot be had.
    """
    stages *= stages_a_worker(method)
    schedule = made(method, [1] * stages, microbatches, batches)
    worker = DEVICES[device]
    profile = estimated(model, worker).scaled(rows)
    cluster = flat(stages, math.inf)
    states = OPTIMIZERS[optimizer]
    planned = plan(
        profile,
        cluster,
        "balance",
        of=CUTS[cut],
        recompute=recompute,
        optimizer_states=states,
    )
    planned = planned.with_replicas([len(each) for each in schedule.stage_workers])
    trace = simulate(schedule, profile, planned, cluster, optimizer_states=states)
    memory, capacity = trace.memory, worker.memory_bytes
    assert memory is not None
    full = [worker for worker, peak in enumerate(memory.peak_bytes) if peak > capacity]
    verdict = f"{model} by {schedule.name} " + (
        f"does not fit {', '.join(f'worker {w}' for w in full)}" if full else "fits"
    )
    cuts = ", ".join(map(str, planned.balance))
    return View(
        text=f"{units.written(profile.parameter_bytes, units.BYTES)} of weights; layers of each "
        f"stage: {cuts}; {rows * microbatches} rows a batch",
        timelines=[Timeline(trace, _peaks(trace), verdict, memory=True, capacity=capacity)],
    )


def _peaks(trace: Trace) -> list[str]:
    assert trace.memory is not None
    return [f"peak {units.written(peak, units.BYTES)}" for peak in trace.memory.peak_bytes]


def controls() -> dict[str, widgets.ValueWidget]:
    """Return the controls of :func:`see`."""
    return {
        "model": choice("model", MODELS),
        "method": choice("method", METHODS),
        "cut": choice("stages of", CUTS),
        "recompute": choice("recompute", ["never", "except_last", "always"]),
        "optimizer": choice("optimizer", OPTIMIZERS),
        "device": choice("device", DEVICES),
        "stages": whole("stages", 1, 8),
        "rows": steps("rows", [1, 2, 4, 8, 16, 32, 64]),
        "microbatches": whole("microbatches", 1, 16),
        "batches": whole("batches", 1, 4),
    }


def memory(interactive: bool, results_dir: str, **start: Any) -> None:
    """Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""
    explore(see, controls, interactive, results_dir, **start)
