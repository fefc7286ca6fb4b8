"""Profiles of the papers' networks: estimated, as published, changed, and run at another pace.

``data/profiles`` has what became of networks on real devices, with sources; ``layer_times.csv`` of
those published layer by layer.  PipeDream's released profiles do not name their GPU: VGG16's images
take 5.25 ms there, where a Titan X takes 8.04: a V100's.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.clusters import Cluster, Device
from pipekit.emulation import emulate
from pipekit.engine import Run
from pipekit.models import PUBLISHED
from pipekit.plans import Plan
from pipekit.profiling import Profile
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


def with_costs(profile: Profile, **changes: Any) -> Profile:
    """Return a profile with other costs: by column of its table, the new one, or a function of it.

    A function gets the table as it was, a row a layer (:meth:`.Profile.to_frame`).
    """
    table = profile.to_frame()
    new = {name: each(table) if callable(each) else each for name, each in changes.items()}
    rows = table.assign(**new)[[*new]].to_dict("records")
    layers = (replace(layer, **row) for layer, row in zip(profile.layers, rows, strict=True))
    return replace(profile, layers=tuple(layers))


def recomputed_late(profile: Profile) -> Profile:
    """Return costs whose backwards begin with the recomputation, for plans that have none.

    The engine and the simulator recompute while a stage waits for its gradient.
    """
    return with_costs(profile, backward_s=lambda layers: layers["forward_s"] + layers["backward_s"])


def stretched(profile: Profile, factor: float) -> Profile:
    """Return a profile whose computing takes ``factor`` times as long; bytes stay."""
    seconds = profile.to_frame()[["forward_s", "backward_s", "update_s", "copy_s"]]
    return with_costs(profile, **dict((seconds * factor).items()))


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


@cache
def published_times(network: str, device: str) -> pd.DataFrame:
    """Return seconds an image of forward and backward, as published; no row if nothing is.

    A row a layer, with its ``parameter_bytes``, or else a single one, without.
    """
    folder = Path(__file__).parents[2] / "data" / "profiles"
    for name in "layer_times.csv", "network_times.csv":
        table = pd.read_csv(folder / name, keep_default_na=False)
        table = table[(table["network"] == network) & (table["device"] == device)]
        if len(table):
            break
    images = 1e3 * table["images"]
    return table.assign(
        forward_s=table["forward_ms"] / images, backward_s=table["backward_ms"] / images
    )


def as_published(profile: Profile, network: str, device: Device) -> Profile:
    """Return a profile of a network of images whose passes take what was published, if anything.

    Every run of layers with the same parameters as a run of published layers, or the whole network,
    takes as long; within it layers keep their shares of the estimate.
    """
    known = published_times(network, device.name)
    if known.empty:
        return profile
    if "parameter_bytes" not in known:
        known = known.assign(parameter_bytes=profile.parameter_bytes)
    if known["parameter_bytes"].sum() != profile.parameter_bytes:
        raise ValueError(
            f"the layers published of {network} have not the profile's "
            f"{profile.parameter_bytes:,.0f} bytes of parameters: it is another network"
        )
    estimated = profile.to_frame()
    sizes = [side["parameter_bytes"].to_numpy(dtype=float) for side in (estimated, known)]
    before = [np.cumsum(size) - size for size in sizes]
    starts = [{*at[size > 0]} for at, size in zip(before, sizes, strict=True)]
    cuts = sorted((starts[0] & starts[1]) - {0.0})
    own, theirs = (  # the run of each layer; one without parameters is in that of the layer before
        np.where(size > 0, np.searchsorted(cuts, at, "right"), np.searchsorted(cuts, at))
        for at, size in zip(before, sizes, strict=True)
    )
    seconds = {}
    for name in "forward_s", "backward_s":
        estimate = np.bincount(own, estimated[name]) / profile.rows
        seconds[name] = estimated[name] * (np.bincount(theirs, known[name]) / estimate)[own]
    return with_costs(profile, **seconds)
