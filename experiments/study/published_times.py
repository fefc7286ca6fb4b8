"""Seconds of networks on GPUs that others measured and published, beside our estimates.

The roofline assumes one efficiency for all layers of all networks.  Here is what became of networks
on real devices: ``data/profiles/network_times.csv`` says how long, for how many images, with which
software, and where it is published; ``layer_times.csv`` has the layers, in the order in which they
run, of those that were published layer by layer.

PipeDream's released profiles do not name their GPU.  Its experiments are on V100s, and VGG16's
images take 5.25 ms there, where a Titan X takes 8.04: they count as a V100's.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipekit.clusters import Device
from pipekit.profiling import Profile
from pipekit.reading import read_text

_FOLDER = Path(__file__).parents[2] / "data" / "profiles"


class LayerTime(NamedTuple):
    """Seconds an image of a layer's forward and backward, and the bytes of its parameters."""

    forward_s: float
    backward_s: float
    parameter_bytes: int


class NetworkTime(NamedTuple):
    """Seconds an image of a network's forward and backward, as published, and by whom.

    ``layers`` are its layers' in the order in which they run, if these were published.
    """

    forward_s: float
    backward_s: float
    source: str
    layers: tuple[LayerTime, ...] = ()

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.forward_s + self.backward_s


@cache
def network_times() -> dict[tuple[str, str], NetworkTime]:
    """Return what is published, by network (as :data:`.models.PUBLISHED` has it) and device."""
    layers = dict[tuple[str, str], list[LayerTime]]()
    for row in _rows("layer_times.csv"):
        found = LayerTime(*_seconds(row), int(row["parameter_bytes"]))
        layers.setdefault((row["network"], row["device"]), []).append(found)
    return {
        (key := (row["network"], row["device"])): NetworkTime(
            *_seconds(row), f"{row['source']}; {row['software']}", tuple(layers.get(key, ()))
        )
        for row in _rows("network_times.csv")
    }


def as_published(profile: Profile, network: str, device: Device) -> Profile:
    """Return a profile whose passes take what was published.

    If layers were published, every run of layers with the same parameters as a run of those takes
    as long; within such a run, and if only the whole network was published, layers keep their
    shares of the estimate.

    Args:
        profile: what a microbatch of a network of images costs, by estimate.
        network: its name.
        device: which it was estimated for.

    Raises:
        KeyError: nothing is published of this network on this device.
        ValueError: the published layers are not this network's.
    """
    known = network_times()[network, device.name]
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

    def factors(name: str) -> list[float]:
        """Return, for each layer of the profile, that of its run."""
        sums = np.bincount(theirs, [getattr(layer, name) for layer in published])
        estimated = np.bincount(own, [getattr(layer, name) for layer in profile.layers])
        return [float(factor) for factor in (sums / (estimated / profile.rows))[own]]

    each = zip(profile.layers, factors("forward_s"), factors("backward_s"), strict=True)
    layers = (
        replace(layer, forward_s=layer.forward_s * f, backward_s=layer.backward_s * b)
        for layer, f, b in each
    )
    return replace(profile, layers=tuple(layers))


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(read_text(_FOLDER / name)), strict=True)


def _seconds(row: Mapping[str, str]) -> tuple[float, float]:
    """Return a row's seconds of an image's forward and backward."""
    images = 1e3 * int(row["images"])
    return float(row["forward_ms"]) / images, float(row["backward_ms"]) / images
