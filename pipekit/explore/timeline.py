"""Methods side by side: when everything runs, and what every worker keeps for it."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Annotated, Any, get_args

import numpy as np

import pipekit as pk
import pipekit.units as units
from pipekit.clusters import Device, flat, papers
from pipekit.explore.page.controls import choice, number, steps, whole
from pipekit.explore.page.explorer import explore, preset
from pipekit.explore.page.view import Timeline, View
from pipekit.planning.balance import Of
from pipekit.plans import Plan, Recompute
from pipekit.schedules.methods.by_name import TABLES, batches_of, stages_a_worker
from pipekit.simulation import Costs, Shards, simulate

LAYERS = 4  # of each stage: what a recomputed stage need not keep lies between them
FORWARD_S = 0.01  # of a stage, for a microbatch, on the average
ACTIVATION_BYTES, WEIGHT_BYTES = 4e6, 16e6  # of each layer: output for a microbatch, parameters
EVEN = "layers of 2.5 ms"  # in place of a network of the papers
DEVICES = {device.name: device for device in (papers.K80, papers.TITAN_X, papers.V100, papers.P40)}
OPTIMIZERS = {"SGD": 0, "SGD, momentum": 1, "Adam": 2}  # tensors kept of a parameter's size
CUTS: dict[str, Of] = {"equal time": "time", "equal size": "size"}
NOTHING = "nothing"
FREE = math.inf
GBITS = [*((str(rate), rate) for rate in (1, 2, 5, 10, 25, 50, 100)), ("free", FREE)]
FASTEST_GBIT = 100
BYTES_PER_GBIT = 1e9 / 8
HOST_BYTES_PER_S = 16e9  # PCIe 3.0 with 16 lanes, rounded
SHARING = 4  # workers that share the weights where a method gathers them; drawn as one
MODELS = (
    *("vgg16", "resnet50", "amoebanet-d-18-256", "unet-5-64"),
    *("bert-large", "gpt-355M", "gpt-1.3B", "gpt-2.2B"),
)
"""Some of :data:`pipekit.models.PUBLISHED`."""
ESTIMATES = "loading torch and estimating the network's costs, once"
REMEMBERED = 64  # schedules and runs that need not be made again when a control goes back
NAMES = [name for name in TABLES if name != "pipefisher"]  # their ops have seconds in a profile
PRESETS = {
    "PipeDream beside GPipe": preset(),
    "what a flush costs": preset(method="flush", beside="2bw", batches=4),
    "1F1B, interleaved, zero bubble": preset(
        method="flush", beside="interleaved", third="zb-h1", microbatches=8, batches=1, gbit=FREE
    ),
    "unequal stages": preset(method="flush", beside="gpipe", unequal=0.5, microbatches=8),
    "gpt-355M on slow links": preset(
        method="flush", beside="eager", network="gpt-355M", microbatches=8, batches=1, gbit=1
    ),
    "gpt-2.2B on 8 workers: does it fit?": preset(
        method="2bw", beside="gpipe", network="gpt-2.2B", stages=8, rows=1, microbatches=8
    ),
    "vgg16 in stages of equal size": preset(
        beside=NOTHING, network="vgg16", by="equal size", rows=32, optimizer="SGD, momentum"
    ),
}


def see(
    method: Annotated[str, choice("method", NAMES)] = "pipedream",
    beside: Annotated[str, choice("beside it", [NOTHING, *NAMES])] = "gpipe",
    third: Annotated[str, choice("and a third", [NOTHING, *NAMES])] = NOTHING,
    network: Annotated[str, choice("network", [EVEN, *MODELS])] = EVEN,
    device: Annotated[str, choice("device", DEVICES)] = papers.V100.name,
    rows: Annotated[int, steps("rows", [1, 2, 4, 8, 16, 32, 64])] = 4,
    by: Annotated[str, choice("stages of", CUTS)] = "equal time",
    optimizer: Annotated[str, choice("optimizer", OPTIMIZERS)] = "SGD",
    recompute: Annotated[Recompute, choice("recompute", get_args(Recompute))] = "never",
    stages: Annotated[int, whole("stages", 1, 8)] = 4,
    replicas: Annotated[int, whole("workers a stage", 1, 4)] = 1,
    microbatches: Annotated[int, whole("microbatches", 1, 32)] = 4,
    batches: Annotated[int, whole("batches", 1, 10)] = 3,
    ratio: Annotated[float, number("backward : forward", 0.5, 4, 0.25)] = 2.0,
    unequal: Annotated[float, number("stages unequal by", 0, 0.9, 0.1)] = 0.0,
    gbit: Annotated[float, steps("link (Gbit/s)", GBITS)] = 25,
) -> View:
    """Return the simulated timelines of methods on equal workers, and their bytes over time.

    Args:
        method: one of :data:`NAMES`; ``beside`` and ``third`` are others, or :data:`NOTHING`.
        network: :data:`EVEN`, whose stages are ``unequal`` by that part of the average and whose
            backwards take ``ratio`` times a forward's seconds; or one of :data:`.MODELS` in float32
            on a ``device``, with ``rows`` a microbatch, cut ``by`` time or size.
        stages: how many, each on ``replicas`` workers; interleaved, each is cut into two.
        microbatches: of a batch; methods that do not cut minibatches get as many whole ones.
        gbit: Gbit/s of each worker's link, ``math.inf`` for links that cost nothing.
    """
    names = dict.fromkeys(name for name in (method, beside, third) if name != NOTHING)
    setting = network, stages, replicas, microbatches, batches, ratio, unequal, recompute, gbit
    capacity = None if network == EVEN else DEVICES[device].memory_bytes
    timelines = []
    for name in names:
        schedule, trace = _simulated(name, setting, (by, rows, optimizer, device))
        assert trace.memory is not None
        peaks, title = trace.memory.peak_bytes, None
        if capacity is not None:
            full = [f"worker {w}" for w, peak in enumerate(peaks) if peak > capacity]
            fits = f"does not fit ({', '.join(full)})" if full else "fits"
            room = units.memory_text(capacity)
            title = f"{network} by {trace.name} {fits} the {room} of a {device}"
        report = pk.schedules.check(schedule)
        each = zip(report.peak_versions, report.peak_in_flight, peaks, strict=True)
        notes = [
            f"{units.plural(versions, 'weight slot')}\n{flying} in flight\n"
            f"peak {units.written(peak, units.BYTES)}"
            for versions, flying, peak in each
        ]
        timelines.append(Timeline(trace, notes, title, memory=True, capacity=capacity))
    return View(text=_compared(timelines), timelines=timelines)


timeline = partial(explore, see, presets=PRESETS, waits_for=ESTIMATES)


@cache
def estimated(model: str, device: Device) -> pk.Profile:
    """Return what each layer of a model costs for a microbatch of one row (a second or two)."""
    import torch  # here, since it takes seconds, and one explorer needs none of it

    from pipekit.models import PUBLISHED

    published = PUBLISHED[model]
    with torch.device("meta"):
        row = published.sample(1)
    return pk.Profile.analytic(published.build(device="meta"), row, device)


_made = lru_cache(REMEMBERED)(batches_of)


@lru_cache(REMEMBERED)
def _simulated(
    name: str, setting: tuple[Any, ...], of_networks: tuple[Any, ...]
) -> tuple[pk.Schedule, pk.Trace]:
    network, stages, replicas, microbatches, batches, ratio, unequal, recompute, gbit = setting
    by, rows, optimizer, device = of_networks
    parts = stages_a_worker(name)
    schedule = _made(name, (replicas,) * stages * parts, microbatches, batches)
    links = None if gbit == FREE else flat(stages * replicas, gbit * BYTES_PER_GBIT)
    homes = [len(each) for each in schedule.stage_workers]
    if network != EVEN:
        profile = estimated(network, DEVICES[device]).scaled(rows)
        states: Any = {"optimizer_states": OPTIMIZERS[optimizer]}
        equal = flat(schedule.stages, math.inf)
        cut = pk.plan(profile, equal, "balance", of=CUTS[by], recompute=recompute, **states)
        costs, cut = _costs(profile, gbit), cut.with_replicas(homes)
        return schedule, simulate(schedule, costs, cut, links, **states)
    cut = Plan.by_hand([LAYERS // parts] * len(homes), replicas=homes, recompute=recompute)
    costs = _costs(_layers(stages, ratio, unequal), gbit)
    return schedule, simulate(schedule, costs, cut, links)


def _costs(profile: pk.Profile, gbit: float) -> Costs:
    """Return a profile's costs, with a host behind PCIe and groups that share weights by links."""
    rate = BYTES_PER_GBIT * (FASTEST_GBIT if gbit == FREE else gbit)
    return Costs(profile, host_bytes_per_s=HOST_BYTES_PER_S, shards=Shards(SHARING, rate))


def _layers(stages: int, ratio: float, unequal: float) -> pk.Profile:
    """Return the stages' layers; those of one stage take equally long."""
    forward_s, chance = FORWARD_S / LAYERS, random.Random(0)
    bytes_ = {"output_bytes": ACTIVATION_BYTES, "parameter_bytes": WEIGHT_BYTES}
    profile = pk.Profile.uniform(stages * LAYERS, forward_s, ratio * forward_s, **bytes_)
    parts = [chance.uniform(1 - unequal, 1 + unequal) for _ in range(stages)]
    layers = (
        replace(layer, forward_s=part * layer.forward_s, backward_s=part * layer.backward_s)
        for layer, part in zip(profile.layers, np.repeat(parts, LAYERS).tolist(), strict=True)
    )
    return replace(profile, layers=tuple(layers))


def _compared(timelines: Sequence[Timeline]) -> str:
    """Return a line that compares the methods' time and memory, the first one's with each."""
    first, *others = timelines
    told = []
    for other in others:
        memory = max(first.held.peak_bytes) / max(other.held.peak_bytes)
        time, name = first.trace.makespan_s / other.trace.makespan_s, other.trace.name
        told.append(f"{time:.2f} times the time and {memory:.2f} times the memory of {name}")
    return f"{first.trace.name} takes {', '.join(told)} ({first.trace.label})" if told else ""
