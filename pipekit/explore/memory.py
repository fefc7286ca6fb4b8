"""What a plan keeps in every worker's memory, against what the device has."""

from functools import partial
from typing import Any

import ipywidgets as widgets

import pipekit.units as units
from pipekit.clusters import papers
from pipekit.explore.networks import ESTIMATES, MODELS, cut, estimated, made
from pipekit.explore.page.controls import choice, steps, whole
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.planning.balance import Of
from pipekit.plans import Recompute
from pipekit.schedules.methods.by_name import METHODS, stages_a_worker
from pipekit.simulation import simulate

DEVICES = {device.name: device for device in (papers.K80, papers.TITAN_X, papers.V100, papers.P40)}
OPTIMIZERS = {"SGD": 0, "SGD, momentum": 1, "Adam": 2}
"""Tensors of a parameter's size that each keeps for it."""
PRESETS: dict[str, dict[str, Any]] = {
    "gpt-355M by PipeDream-2BW": {},
    "the same by GPipe": {"method": "gpipe"},
    "GPipe, recomputing": {"method": "gpipe", "recompute": "always"},
    "gpt-2.2B on 8 workers": {"model": "gpt-2.2B", "stages": 8, "rows": 1},
    "vgg16 by PipeDream, stages of equal size": {
        "model": "vgg16",
        "method": "pipedream",
        "by": "equal size",
        "rows": 32,
        "optimizer": "SGD, momentum",
    },
}
CUTS: dict[str, Of] = {"equal time": "time", "equal size": "size"}


def see(
    model: str = "gpt-355M",
    method: str = "2bw",
    by: str = "equal time",
    stages: int = 4,
    rows: int = 4,
    microbatches: int = 8,
    batches: int = 2,
    recompute: Recompute = "never",
    optimizer: str = "Adam",
    device: str = papers.V100.name,
) -> View:
    """Return the simulated bytes of every worker over time, for a network in float32.

    The choices are those of :func:`controls`. Each stage has a worker, and ``rows`` are of a
    microbatch; a method that does not cut minibatches gets as many whole ones.
    """
    stages *= stages_a_worker(method)
    schedule = made(method, (1,) * stages, microbatches, batches)
    worker = DEVICES[device]
    profile = estimated(model, worker).scaled(rows)
    states = OPTIMIZERS[optimizer]
    planned = cut(profile, schedule, of=CUTS[by], recompute=recompute, optimizer_states=states)
    trace = simulate(schedule, profile, planned, optimizer_states=states)
    memory, capacity = trace.memory, worker.memory_bytes
    assert memory is not None
    full = [f"worker {number}" for number, peak in enumerate(memory.peak_bytes) if peak > capacity]
    room = f"the {units.memory_text(capacity)} of a {device}"
    verdict = f"does not fit {room} ({', '.join(full)})" if full else f"fits {room}"
    peaks = [f"peak {units.written(peak, units.BYTES)}" for peak in memory.peak_bytes]
    title = f"{model} by {schedule.name} {verdict}"
    cuts = ", ".join(map(str, planned.balance))
    return View(
        text=f"{units.written(profile.parameter_bytes, units.BYTES)} of weights; layers of each "
        f"stage: {cuts}; {rows * microbatches} rows a batch",
        timelines=[Timeline(trace, peaks, title, memory=True, capacity=capacity)],
    )


def controls() -> dict[str, widgets.ValueWidget]:
    """Return the controls of :func:`see`."""
    return {
        "model": choice("model", MODELS),
        "method": choice("method", METHODS),
        "by": choice("stages of", CUTS),
        "recompute": choice("recompute", ["never", "except_last", "always"]),
        "optimizer": choice("optimizer", OPTIMIZERS),
        "device": choice("device", DEVICES),
        "stages": whole("stages", 1, 8),
        "rows": steps("rows", [1, 2, 4, 8, 16, 32, 64]),
        "microbatches": whole("microbatches", 1, 16),
        "batches": whole("batches", 1, 4),
    }


memory = partial(explore, see, controls, presets=PRESETS, waits_for=ESTIMATES)
"""Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""
