"""Seconds of networks on GPUs that others measured and published, beside our estimates.

The roofline assumes one efficiency for all layers of all networks.  Here is what became of networks
on real devices: ``data/profiles/network_times.csv`` says how long, for how many images, with which
software, and where it is published; ``layer_times.csv`` has the layers, in the order in which they
run, of those that were published layer by layer.

PipeDream's released profiles do not name their GPU.  Its experiments are on V100s, and VGG16's
images take 5.25 ms there, where a Titan X takes 8.04: they count as a V100's.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipekit.clusters import Device
from pipekit.profiling import Profile

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

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.forward_s + self.backward_s


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
    """Return a profile of a network of images whose passes take what was published.

    If layers were published, every run of layers with the same parameters as a run of those takes
    as long; within such a run, and if only the whole network was published, layers keep their
    shares of the estimate. Of other layers it is a ValueError.
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


def _read(name: str) -> pd.DataFrame:
    """Return a table with the seconds of an image's forward and backward besides."""
    table = pd.read_csv(_FOLDER / name, keep_default_na=False)
    passes = ("forward", "backward")
    return table.assign(**{f"{p}_s": table[f"{p}_ms"] / (1e3 * table["images"]) for p in passes})
