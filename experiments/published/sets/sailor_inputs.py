"""What Sailor's repository gives in full: layers' sizes and passes, and bandwidths of networks."""

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from experiments.published.published_set import given
from pipekit.reading import read_table


class Layer(NamedTuple):
    """A layer on a tensor-parallel rank."""

    weights: float
    output_bytes: float  # of a sample
    kept_bytes: float  # likewise


_FILES = "layer_sizes", "layer_profiles", "network_fits"
PassCosts = dict[int, tuple[float, float]]  # seconds of a forward and of a backward, by layer
Fit = tuple[float, float, float, float]
"""Of a bandwidth in GB/s, by the logarithm of the MB of a message: three coefficients; its peak."""


class Inputs(NamedTuple):
    """What the set gives in full."""

    layers: Mapping[tuple[str, int], list[Layer]]  # by model and tensor-parallel degree
    # By model, GPU and degree, then by samples of a microbatch.
    passes: Mapping[tuple[str, str, int], Mapping[int, PassCosts]]
    # Between nodes, by sender, how many of its GPUs send, and receiver likewise.
    networks: Mapping[tuple[str, int, str, int], Fit]


def inputs() -> Inputs:
    """Return the inputs in the folder of measurements; ValueError if they are not there."""
    paths = [path for name in _FILES if (path := given(f"sailor/{name}.csv"))]
    if len(paths) < len(_FILES):
        raise ValueError("needs the set's layer profiles: name the folder of measurements")
    return _read(paths[0].parent)


@cache
def _read(folder: Path) -> Inputs:
    """Read a folder.

    The planner's profiles, one of which is a copy of another model's, count only where Sailor's own
    validation has none; networks of mixed GPUs before those of equal ones.
    """
    sizes = read_table(folder / "layer_sizes.csv").groupby(["model", "tp"])
    columns = ["params_floats", "act_output_bytes", "act_mem_bytes"]
    layers = {key: [Layer(*each) for each in own[columns].to_numpy()] for key, own in sizes}
    table = read_table(folder / "layer_profiles.csv")
    best = table.groupby(["model", "gpu"])["source"].transform("max")  # "planner", "validation"
    passes: dict[tuple[str, str, int], dict[int, PassCosts]] = defaultdict(dict)
    keys = ["model", "gpu", "tp", "micro_batch_samples"]
    for (*key, samples), own in table[table["source"] == best].groupby(keys):
        seconds = zip(own["forward_s"], own["backward_s"], strict=True)
        passes[tuple(key)][samples] = dict(zip(own["layer"], seconds, strict=True))
    table = read_table(folder / "network_fits.csv").query("where == 'inter_node'")
    ends = ["sender_gpu", "sender_gpus", "receiver_gpu", "receiver_gpus"]
    fits = table.sort_values("file", ascending=False).set_index(ends)
    fits = fits[["c2", "c1", "c0", "peak_bytes_per_s"]]
    return Inputs(layers, passes, dict(zip(fits.index, fits.to_numpy(), strict=True)))


def layers(model: str, tp: int) -> list[Layer]:
    found = inputs().layers.get((model, tp))
    if not found:
        raise ValueError(f"there are no layer sizes of {model} for tp {tp}")
    return found


def profile(model: str, gpu: str, tp: int) -> Mapping[int, PassCosts]:
    """Return the passes of a model's layers by samples of a microbatch; ValueError if unknown."""
    known = inputs().passes.get((model, gpu, tp))
    if not known:
        raise ValueError(f"there is no profile of {model} on {gpu} for tp {tp}")
    return known


def bandwidth(sender: tuple[str, int], receiver: tuple[str, int], size: float) -> float:
    """Return bytes/s between nodes of so many GPUs of a kind, for messages of so many bytes.

    All GPUs of a node send at once; of other counts the nearest counts.
    """
    ways = inputs().networks
    pairs = [way for way in ways if (way[0], way[2]) == (sender[0], receiver[0])]
    if not pairs:
        raise ValueError(f"there is no network between {sender[0]} and {receiver[0]}")
    way = min(pairs, key=lambda way: abs(way[1] - sender[1]) + abs(way[3] - receiver[1]))
    c2, c1, c0, peak = ways[way]
    log = math.log2(size / 1e6)
    return min(peak, max(c2 * log**2 + c1 * log + c0, 0.02) * 1e9)
