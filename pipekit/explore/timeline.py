"""Methods side by side: when everything runs, and what every worker keeps for it."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import ipywidgets as widgets
import numpy as np

import pipekit.units as units
from pipekit.clusters import flat, papers
from pipekit.explore.networks import ESTIMATES, MODELS, cut, estimated, made
from pipekit.explore.page.controls import choice, number, steps, whole
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, check
from pipekit.schedules.methods.by_name import METHODS, stages_a_worker
from pipekit.simulation import simulate
from pipekit.traces import Trace

LAYERS = 4
"""Of each stage: what a recomputed stage need not keep lies between them."""
FORWARD_S = 0.01
"""Of a stage, for a microbatch, on the average."""
ACTIVATION_BYTES, WEIGHT_BYTES = 4e6, 16e6
"""Of each layer: its output for a microbatch, and its parameters."""
EVEN = "layers of 2.5 ms"
"""In place of a network of the papers."""
ROWS = 4
"""Of a microbatch of those."""
NOTHING = "nothing"
FREE = math.inf
GBITS = [1, 2, 5, 10, 25, 50, 100, FREE]
BYTES_PER_GBIT = 1e9 / 8
REMEMBERED = 64
"""Runs that need not be simulated again when a control goes back."""
PRESETS: dict[str, dict[str, Any]] = {
    "PipeDream beside GPipe": {},
    "what a flush costs": {"method": "flush", "beside": "2bw", "batches": 4},
    "1F1B, interleaved, zero bubble": {
        "method": "flush",
        "beside": "interleaved",
        "third": "zb-h1",
        "microbatches": 8,
        "batches": 1,
        "gbit": FREE,
    },
    "unequal stages": {"method": "flush", "beside": "gpipe", "unequal": 0.5, "microbatches": 8},
    "gpt-355M on slow links": {
        "method": "flush",
        "beside": "eager",
        "network": "gpt-355M",
        "microbatches": 8,
        "batches": 1,
        "gbit": 1,
    },
}


def see(
    method: str = "pipedream",
    beside: str = "gpipe",
    third: str = NOTHING,
    network: str = EVEN,
    stages: int = 4,
    replicas: int = 1,
    microbatches: int = 4,
    batches: int = 3,
    ratio: float = 2.0,
    unequal: float = 0.0,
    recompute: Recompute = "never",
    gbit: float = 25,
) -> View:
    """Return the simulated timelines of methods on equal workers, and their bytes over time.

    Args:
        method: one of :data:`pipekit.schedules.methods.by_name.METHODS`; ``beside`` and ``third``
            are others, or :data:`NOTHING`.
        network: :data:`EVEN`, or one of :data:`pipekit.explore.networks.MODELS` on a V100, with
            ``ROWS`` rows a microbatch, in stages of about equal time; it has no ``ratio`` (of a
            backward's seconds to a forward's) and is not ``unequal`` (by that part of the average).
        stages: how many, each on ``replicas`` workers; interleaved, each is cut into two.
        microbatches: of a batch; methods that do not cut minibatches get as many whole ones.
        gbit: Gbit/s of each worker's link, ``math.inf`` for links that cost nothing.
    """
    names = dict.fromkeys(name for name in (method, beside, third) if name != NOTHING)
    setting = network, stages, replicas, microbatches, batches, ratio, unequal, recompute, gbit
    timelines = []
    for name in names:
        schedule, trace = _simulated(name, *setting)
        timelines.append(Timeline(trace, _notes(schedule, trace), memory=True))
    return View(text=_compared([each.trace for each in timelines]), timelines=timelines)


def controls() -> dict[str, widgets.ValueWidget]:
    """Return the controls of :func:`see`."""
    return {
        "method": choice("method", METHODS),
        "beside": choice("beside it", [NOTHING, *METHODS]),
        "third": choice("and a third", [NOTHING, *METHODS]),
        "network": choice("network", [EVEN, *MODELS]),
        "recompute": choice("recompute", ["never", "except_last", "always"]),
        "stages": whole("stages", 1, 8),
        "replicas": whole("workers a stage", 1, 4),
        "microbatches": whole("microbatches", 1, 32),
        "batches": whole("batches", 1, 10),
        "ratio": number("backward : forward", 0.5, 4, 0.25),
        "unequal": number("stages unequal by", 0, 0.9, 0.1),
        "gbit": steps("link (Gbit/s)", [("free" if g == FREE else str(g), g) for g in GBITS]),
    }


timeline = partial(explore, see, controls, presets=PRESETS, waits_for=ESTIMATES)
"""Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""


@lru_cache(REMEMBERED)
def _simulated(
    name: str,
    network: str,
    stages: int,
    replicas: int,
    microbatches: int,
    batches: int,
    ratio: float,
    unequal: float,
    recompute: Recompute,
    gbit: float,
) -> tuple[Schedule, Trace]:
    parts = stages_a_worker(name)
    schedule = made(name, (replicas,) * stages * parts, microbatches, batches)
    links = None if gbit == FREE else flat(stages * replicas, gbit * BYTES_PER_GBIT)
    if network != EVEN:
        profile = estimated(network, papers.V100).scaled(ROWS)
        plan = cut(profile, schedule, recompute=recompute)
        return schedule, simulate(schedule, profile, plan, links)
    homes = [len(each) for each in schedule.stage_workers]
    plan = Plan.by_hand([LAYERS // parts] * len(homes), replicas=homes, recompute=recompute)
    return schedule, simulate(schedule, _layers(stages, ratio, unequal), plan, links)


def _layers(stages: int, ratio: float, unequal: float) -> Profile:
    """Return the stages' layers; those of one stage take equally long."""
    forward_s = FORWARD_S / LAYERS
    profile = Profile.uniform(
        stages * LAYERS,
        forward_s,
        ratio * forward_s,
        output_bytes=ACTIVATION_BYTES,
        parameter_bytes=WEIGHT_BYTES,
    )
    chance = random.Random(0)
    parts = [chance.uniform(1 - unequal, 1 + unequal) for _ in range(stages)]
    layers = (
        replace(layer, forward_s=part * layer.forward_s, backward_s=part * layer.backward_s)
        for layer, part in zip(profile.layers, np.repeat(parts, LAYERS).tolist(), strict=True)
    )
    return replace(profile, layers=tuple(layers))


def _notes(schedule: Schedule, trace: Trace) -> list[str]:
    """Return what each worker keeps at most."""
    report = check(schedule)
    assert trace.memory is not None
    return [
        f"{units.plural(versions, 'weight slot')}\n{flying} in flight\n"
        f"peak {units.written(peak, units.BYTES)}"
        for versions, flying, peak in zip(
            report.peak_versions, report.peak_in_flight, trace.memory.peak_bytes, strict=True
        )
    ]


def _compared(traces: Sequence[Trace]) -> str:
    """Return a line that compares the methods' time and memory, the first one's with each."""
    first, *others = traces
    told = []
    for other in others:
        assert first.memory is not None
        assert other.memory is not None
        memory = max(first.memory.peak_bytes) / max(other.memory.peak_bytes)
        time = first.makespan_s / other.makespan_s
        told.append(f"{time:.2f} times the time and {memory:.2f} times the memory of {other.name}")
    return f"{first.name} takes {', '.join(told)} ({first.label})" if told else ""
