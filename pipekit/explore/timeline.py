"""Two methods side by side: when everything runs, and what every worker keeps for it."""

import math
from functools import partial
from typing import Any

import ipywidgets as widgets

from pipekit.clusters import flat
from pipekit.explore.page.controls import choice, number, steps, whole
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.plans import Plan, Recompute
from pipekit.plots import units
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, check
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH, stages_a_worker
from pipekit.simulation import simulate
from pipekit.traces import Trace

LAYERS = 4
"""Of each stage: what a recomputed stage need not keep lies between them."""
FORWARD_S = 0.01
"""Of a stage, for a microbatch."""
ACTIVATION_BYTES, WEIGHT_BYTES = 4e6, 16e6
"""Of each layer: its output for a microbatch, and its parameters."""
NOTHING = "nothing"
FREE = math.inf
GBITS = [1, 2, 5, 10, 25, 50, 100, FREE]
BYTES_PER_GBIT = 1e9 / 8


def see(
    method: str = "pipedream",
    beside: str = "gpipe",
    stages: int = 4,
    replicas: int = 1,
    microbatches: int = 4,
    batches: int = 3,
    ratio: float = 2.0,
    recompute: Recompute = "never",
    gbit: float = 25,
) -> View:
    """Return the simulated timelines of two methods on equal workers, and their bytes over time.

    Args:
        method: one of :data:`pipekit.schedules.methods.by_name.METHODS`.
        beside: another, or "nothing".
        stages: how many, one on a worker; interleaved, each is cut into two.
        replicas: workers of each stage.
        microbatches: of a batch; methods that do not cut minibatches get as many whole ones.
        batches: how many.
        ratio: seconds of a backward by those of a forward.
        recompute: which microbatches are computed again.
        gbit: Gbit/s of each worker's link, ``math.inf`` for links that cost nothing.

    Raises:
        ValueError: a method cannot be had with these numbers.
    """
    run = partial(
        _simulated,
        stages=stages,
        replicas=replicas,
        microbatches=microbatches,
        batches=batches,
        ratio=ratio,
        recompute=recompute,
        gbit=gbit,
    )
    names = [method] if beside in (NOTHING, method) else [method, beside]
    traces, timelines = [], []
    for name in names:
        schedule, trace = run(name)
        traces.append(trace)
        timelines.append(Timeline(trace, _notes(schedule, trace), memory=True))
    return View(text=_compared(*traces), timelines=timelines)


def controls() -> dict[str, widgets.ValueWidget]:
    """Return the controls of :func:`see`."""
    return {
        "method": choice("method", METHODS),
        "beside": choice("beside it", [NOTHING, *METHODS]),
        "recompute": choice("recompute", ["never", "except_last", "always"]),
        "stages": whole("stages", 1, 8),
        "replicas": whole("workers a stage", 1, 4),
        "microbatches": whole("microbatches", 1, 16),
        "batches": whole("batches", 1, 6),
        "ratio": number("backward : forward", 0.5, 4, 0.25),
        "gbit": steps("link (Gbit/s)", [("free" if g == FREE else str(g), g) for g in GBITS]),
    }


def timeline(interactive: bool, results_dir: str, **start: Any) -> None:
    """Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""
    explore(see, controls, interactive, results_dir, **start)


def _simulated(
    name: str,
    stages: int,
    replicas: int,
    microbatches: int,
    batches: int,
    ratio: float,
    recompute: Recompute,
    gbit: float,
) -> tuple[Schedule, Trace]:
    parts = stages_a_worker(name)
    workers = [replicas] * stages * parts
    schedule = made(name, workers, microbatches, batches)
    profile = Profile.uniform(
        stages * LAYERS,
        FORWARD_S / LAYERS,
        ratio * FORWARD_S / LAYERS,
        output_bytes=ACTIVATION_BYTES,
        parameter_bytes=WEIGHT_BYTES,
    )
    homes = [len(each) for each in schedule.stage_workers]
    plan = Plan.by_hand([LAYERS // parts] * len(homes), replicas=homes, recompute=recompute)
    links = None if gbit == FREE else flat(stages * replicas, gbit * BYTES_PER_GBIT)
    return schedule, simulate(schedule, profile, plan, links)


def made(name: str, replicas: list[int], microbatches: int, batches: int) -> Schedule:
    """Return a method's schedule; one that does not cut minibatches gets as many whole ones."""
    if name in PER_MINIBATCH:
        return METHODS[name](replicas, 1, microbatches * batches)
    return METHODS[name](replicas, microbatches, batches)


def _notes(schedule: Schedule, trace: Trace) -> list[str]:
    """Return what each worker keeps at most."""
    report = check(schedule)
    assert trace.memory is not None
    return [
        f"{_count(versions, 'weight slot')}, {flying} in flight, {units.written(peak, units.BYTES)}"
        for versions, flying, peak in zip(
            report.peak_versions, report.peak_in_flight, trace.memory.peak_bytes, strict=True
        )
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _compared(first: Trace, other: Trace | None = None) -> str:
    """Return a line that compares the methods' memory."""
    if other is None:
        return ""
    peaks = []
    for trace in (first, other):
        assert trace.memory is not None
        peaks.append(max(trace.memory.peak_bytes))
    ratio = peaks[0] / peaks[1]
    return f"{first.name} needs {ratio:.2g} times the memory of {other.name} ({first.label})"
