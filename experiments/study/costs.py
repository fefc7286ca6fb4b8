"""Profiles of the papers' networks: estimated, as published, changed, and run at another pace.

``data/profiles`` has what became of networks on real devices, with sources; ``layer_times.csv`` of
those published layer by layer.  PipeDream's released profiles do not name their GPU: VGG16's images
take 5.25 ms there, where a Titan X takes 8.04: a V100's.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.clusters import Cluster, Device
from pipekit.emulation import emulate
from pipekit.engine import Run
from pipekit.models import PUBLISHED
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule


def estimated(
    build: Callable[..., nn.Sequential], sample: Callable[[], Tensor], device: Device, **how: Any
) -> Profile:
    """Return what a network costs on a device, by its shapes; see :meth:`.Profile.analytic`."""
    with torch.device("meta"):
        x = sample()
    return Profile.analytic(build(device="meta"), x, device, **how)


def published(network: str, rows: int, device: Device, **how: Any) -> Profile:
    """Return what a microbatch of a network of :data:`.models.PUBLISHED` costs (simulated)."""
    found = PUBLISHED[network]
    return estimated(found.build, lambda: found.sample(rows), device, **how)


def images(rows: int, pixels: int) -> Callable[[], Tensor]:
    """Return what makes a microbatch of square colour images, ``[rows, 3, pixels, pixels]``."""
    return lambda: torch.rand(rows, 3, pixels, pixels)


def with_costs(profile: Profile, **changes: Callable[[LayerProfile], float]) -> Profile:
    """Return a profile with other costs: by attribute of a layer, the new value from the layer."""
    layers = (
        replace(layer, **{name: value(layer) for name, value in changes.items()})  # type: ignore[arg-type]
        for layer in profile.layers
    )
    return replace(profile, layers=tuple(layers))


def recomputed_late(profile: Profile) -> Profile:
    """Return costs whose backwards begin with the recomputation, for plans that have none.

    The engine and the simulator recompute while a stage waits for its gradient.
    """
    return with_costs(profile, backward_s=lambda layer: layer.forward_s + layer.backward_s)


def stretched(profile: Profile, factor: float) -> Profile:
    """Return a profile whose computing takes ``factor`` times as long; bytes stay."""
    return with_costs(
        profile,
        forward_s=lambda layer: layer.forward_s * factor,
        backward_s=lambda layer: layer.backward_s * factor,
        update_s=lambda layer: layer.update_s * factor,
        copy_s=lambda layer: layer.copy_s * factor,
    )


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    for level in cluster.levels:
        origin = f"{level.effective.origin if level.effective else 'nominal'}, times {factor:g}"
        cluster = cluster.calibrated(level.name, level.used_bandwidth * factor, origin)
    return cluster


def emulate_at_pace(
    schedule: Schedule, profile: Profile, plan: Plan, cluster: Cluster | None, faster: float
) -> Run:
    """Emulate a schedule in time that runs ``faster`` than the profile's (below 1: slower).

    The trace is in the profile's own seconds again, without transfers.
    """
    links = cluster and faster_links(cluster, faster)
    run = emulate(schedule, stretched(profile, 1 / faster), plan, links)
    times = run.trace.frame[["start_s", "end_s"]] * faster
    frame = run.trace.frame.assign(**times)
    trace = replace(run.trace, frame=frame, transfers=None, origin_ns=None)
    return replace(run, other_trace=trace)


_FOLDER = Path(__file__).parents[2] / "data" / "profiles"


class LayerTime(NamedTuple):
    """Seconds an image of a layer's forward and backward, and the bytes of its parameters."""

    forward_s: float
    backward_s: float
    parameter_bytes: int


class NetworkTime(NamedTuple):
    """Seconds an image of a network's forward and backward, as published, and by whom."""

    forward_s: float
    backward_s: float
    source: str
    layers: tuple[LayerTime, ...] = ()


@cache
def network_times() -> dict[tuple[str, str], NetworkTime]:
    """Return what is published, by network (as :data:`.models.PUBLISHED` has it) and device."""
    layers = {
        key: tuple(
            LayerTime(x.forward_s, x.backward_s, x.parameter_bytes) for x in rows.itertuples()
        )
        for key, rows in _read("layer_times.csv").groupby(["network", "device"], sort=False)
    }
    return {
        (key := (x.network, x.device)): NetworkTime(
            x.forward_s, x.backward_s, f"{x.source}; {x.software}", layers.get(key, ())
        )
        for x in _read("network_times.csv").itertuples()
    }


def as_published(profile: Profile, network: str, device: Device) -> Profile:
    """Return a profile of a network of images whose passes take what was published, if anything.

    Every run of layers with the same parameters as a run of published layers, or the whole network,
    takes as long; within it layers keep their shares of the estimate.
    """
    known = network_times().get((network, device.name))
    if known is None:
        return profile
    whole = LayerTime(known.forward_s, known.backward_s, int(profile.parameter_bytes))
    published = known.layers or (whole,)
    if sum(layer.parameter_bytes for layer in published) != profile.parameter_bytes:
        raise ValueError(
            f"the layers published of {network} have not the profile's "
            f"{profile.parameter_bytes:,.0f} bytes of parameters: it is another network"
        )
    sides = profile.layers, published
    sizes = [np.array([float(layer.parameter_bytes) for layer in side]) for side in sides]
    before = [np.cumsum(size) - size for size in sizes]
    starts = [{*at[size > 0]} for at, size in zip(before, sizes, strict=True)]
    cuts = sorted((starts[0] & starts[1]) - {0.0})
    own, theirs = (  # the run of each layer; one without parameters is in that of the layer before
        np.where(size > 0, np.searchsorted(cuts, at, "right"), np.searchsorted(cuts, at))
        for at, size in zip(before, sizes, strict=True)
    )

    def factors(name: str) -> list[float]:  # for each layer of the profile, that of its run
        sums = np.bincount(theirs, [getattr(layer, name) for layer in published])
        estimated = np.bincount(own, [getattr(layer, name) for layer in profile.layers])
        return [float(factor) for factor in (sums / (estimated / profile.rows))[own]]

    each = zip(profile.layers, factors("forward_s"), factors("backward_s"), strict=True)
    layers = (
        replace(layer, forward_s=layer.forward_s * f, backward_s=layer.backward_s * b)
        for layer, f, b in each
    )
    return replace(profile, layers=tuple(layers))


def _read(name: str) -> pd.DataFrame:
    """Return a table with the seconds of an image's forward and backward besides."""
    table = pd.read_csv(_FOLDER / name, keep_default_na=False)
    passes = ("forward", "backward")
    return table.assign(**{f"{p}_s": table[f"{p}_ms"] / (1e3 * table["images"]) for p in passes})
