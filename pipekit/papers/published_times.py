"""Seconds of networks on GPUs that others measured and published, beside our estimates.

The roofline assumes one efficiency for all layers of all networks.  Here is what became of whole
networks on the real device: ``data/profiles/network_times.csv`` says how long, for how many images,
with which software, and where it is published.
"""

import csv
import io
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipekit.clusters import Device
from pipekit.papers.costs import with_costs
from pipekit.profiling import Profile
from pipekit.reading import read_text

_PLACES = (
    Path(__file__).parents[2] / "data" / "profiles" / "network_times.csv",  # a checkout
    Path(__file__).with_name("network_times.csv"),  # the copy that a wheel carries
)


class NetworkTime(NamedTuple):
    """Seconds an image of a network's forward and backward, as published, and by whom."""

    forward_s: float
    backward_s: float
    source: str

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.forward_s + self.backward_s


@cache
def network_times() -> dict[tuple[str, str], NetworkTime]:
    """Return what is published, by network (as :data:`.models.PUBLISHED` has it) and device."""
    path = next(place for place in _PLACES if place.exists())
    found = {}
    for row in csv.DictReader(io.StringIO(read_text(path)), strict=True):
        images = 1e3 * int(row["images"])
        forward_s, backward_s = (
            float(row[f"{way}_ms"]) / images for way in ("forward", "backward")
        )
        source = f"{row['source']}; {row['software']}"
        found[row["network"], row["device"]] = NetworkTime(forward_s, backward_s, source)
    return found


def as_published(profile: Profile, network: str, device: Device) -> Profile:
    """Return a profile whose passes take together what was published; layers keep their shares.

    Args:
        profile: what a microbatch of a network of images costs, by estimate.
        network: its name.
        device: which it was estimated for.

    Raises:
        KeyError: nothing is published of this network on this device.
    """
    known = network_times()[network, device.name]
    forward = known.forward_s * profile.rows / sum(layer.forward_s for layer in profile.layers)
    backward = known.backward_s * profile.rows / sum(layer.backward_s for layer in profile.layers)
    return with_costs(
        profile,
        forward_s=lambda layer: forward * layer.forward_s,
        backward_s=lambda layer: backward * layer.backward_s,
    )
