"""Profiles of the papers' networks: estimated for a device, and changed layer by layer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.clusters import Device
from pipekit.models import PUBLISHED
from pipekit.profiling import LayerProfile, Profile


def estimated(
    build: Callable[..., nn.Sequential], sample: Callable[[], Tensor], device: Device, **how: Any
) -> Profile:
    """Return what a network costs on a device, from shapes alone (simulated).

    ``build`` makes the network on the device that it is given, which is "meta", and ``sample`` a
    microbatch on PyTorch's default device, likewise; ``how`` are further arguments of
    :meth:`pipekit.Profile.analytic`.
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
    """Return a profile in which some costs of every layer are others.

    ``changes`` give, by attribute of :class:`pipekit.profiling.LayerProfile`, the new value from
    the layer as it was.
    """
    layers = (
        replace(layer, **{name: value(layer) for name, value in changes.items()})  # type: ignore[arg-type]
        for layer in profile.layers
    )
    return replace(profile, layers=tuple(layers))


def recomputed_late(profile: Profile) -> Profile:
    """Return costs whose backwards begin with the recomputation, once the gradient is there.

    To be run by a plan that recomputes nothing itself: the engine and the simulator recompute
    while a stage waits for its gradient.
    """
    return with_costs(profile, backward_s=lambda layer: layer.forward_s + layer.backward_s)
