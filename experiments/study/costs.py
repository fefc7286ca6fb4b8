"""Profiles of the papers' networks: estimated, as published, changed, and run at another pace.

The engine takes some tenths of a millisecond between two passes.  An emulation is slowed down so
that these count little, or sped up so that it ends soon.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    """Return what a network costs on a device, from shapes alone (simulated).

    ``build`` makes the network, ``sample`` a microbatch, both without numbers ("meta"); ``how``
    goes on to :meth:`pipekit.Profile.analytic`.
    """
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
    """Return costs whose backwards begin with the recomputation.

    Their plan recomputes nothing: the engine and the simulator recompute while a stage waits for
    its gradient.
    """
    return with_costs(profile, backward_s=lambda layer: layer.forward_s + layer.backward_s)


def stretched(profile: Profile, factor: float) -> Profile:
    """Return a profile whose computing takes ``factor`` times as long; bytes stay."""
    times = "forward_s", "backward_s", "update_s", "copy_s"
    layers = (
        replace(layer, **{name: getattr(layer, name) * factor for name in times})
        for layer in profile.layers
    )
    return replace(profile, layers=tuple(layers))


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose links carry ``factor`` times as much a second."""
    for level in cluster.levels:
        origin = f"{level.effective.origin if level.effective else 'nominal'}, times {factor:g}"
        cluster = cluster.calibrated(level.name, level.used_bandwidth * factor, origin)
    return cluster


def emulate_at_pace(
    schedule: Schedule, profile: Profile, plan: Plan, cluster: Cluster | None, faster: float
) -> Run:
    """Emulate a schedule in time that runs ``faster`` than the profile's (below 1: slower).

    Without a cluster messages are as fast as threads hand them over. The trace is in the profile's
    own seconds again, without transfers.
    """
    links = cluster and faster_links(cluster, faster)
    run = emulate(schedule, stretched(profile, 1 / faster), plan, links)
    times = run.trace.frame[["start_s", "end_s"]] * faster
    frame = run.trace.frame.assign(**times)
    trace = replace(run.trace, frame=frame, transfers=None, origin_ns=None)
    return replace(run, other_trace=trace)
