"""Seconds of networks on GPUs that others measured and published, beside our estimates.

The roofline assumes one efficiency for all layers of all networks.  Here is what became of networks
on real devices: ``data/profiles/network_times.csv`` says how long, for how many images, with which
software, and where it is published; where it was published layer by layer, ``layer_times.csv`` has
the layers in the order in which they run.

PipeDream's released profiles do not name their GPU.  Its experiments are on V100s, and VGG16's
images take 5.25 ms there, where a Titan X takes 8.04: they count as a V100's.
"""

import csv
import io
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.clusters import Device
from pipekit.profiling import LayerProfile, Profile
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


_Layers = Sequence[LayerTime] | Sequence[LayerProfile]


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
    cuts = sorted(_starts(profile.layers) & _starts(published) - {0.0})
    own, theirs = _runs(profile.layers, cuts), _runs(published, cuts)
    forward = _sums((layer.forward_s for layer in published), theirs)
    backward = _sums((layer.backward_s for layer in published), theirs)
    forward /= _sums((layer.forward_s for layer in profile.layers), own) / profile.rows
    backward /= _sums((layer.backward_s for layer in profile.layers), own) / profile.rows
    layers = (
        replace(
            layer,
            forward_s=layer.forward_s * float(forward[run]),
            backward_s=layer.backward_s * float(backward[run]),
        )
        for layer, run in zip(profile.layers, own, strict=True)
    )
    return replace(profile, layers=tuple(layers))


def _starts(layers: _Layers) -> set[float]:
    """Return how many bytes of parameters are before each layer that has some itself."""
    return {before for layer, before in _with_bytes_before(layers) if layer.parameter_bytes}


def _runs(layers: _Layers, cuts: Sequence[float]) -> list[int]:
    """Return the run of each layer; one without parameters is in that of the layer before it."""
    return [
        bisect_right(cuts, before) if layer.parameter_bytes else bisect_left(cuts, before)
        for layer, before in _with_bytes_before(layers)
    ]


def _with_bytes_before(layers: _Layers) -> Iterator[tuple[LayerTime | LayerProfile, float]]:
    sizes = (layer.parameter_bytes for layer in layers)
    return zip(layers, accumulate(sizes, initial=0.0), strict=False)


def _sums(seconds: Iterable[float], runs: Sequence[int]) -> NDArray[np.float64]:
    return np.bincount(runs, weights=list(seconds)).astype(np.float64)


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(read_text(_FOLDER / name)), strict=True)


def _seconds(row: Mapping[str, str]) -> tuple[float, float]:
    """Return a row's seconds of an image's forward and backward."""
    images = 1e3 * int(row["images"])
    return float(row["forward_ms"]) / images, float(row["backward_ms"]) / images
