"""A node of B200 as SimuMax measured it: shares of the data sheet that kernels reach, by shape."""

import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from experiments.published.rows import given
from pipekit.performance.devices import machine
from pipekit.performance.terms.kernels import PassCosts
from pipekit.reading import read_json

_B200 = machine("B200")
_PEAK = _B200.peak("bfloat16")
_FORWARD, _INPUT, _WEIGHT = "TN", "NN", "NT"
"""Layouts of a linear layer's products: of its output, and of the gradients of input and weight."""
_GROUPED = "fwd", "bwd_grad_act", "bwd_grad_w"

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class System:
    """The tables of the file, each a share of the peak by sizes.

    Attributes:
        products: (m, k, n) by layout.
        grouped: (products, m, n, k) by pass.
        attention: (tokens, heads, key heads, width), forward and backward; the whole square counts.
        traffic: the share of the memory's bandwidth by kind of kernel.
        collectives: by name, as the file has them.
    """

    products: dict[str, dict[Sizes, float]]
    grouped: dict[str, dict[Sizes, float]]
    attention: tuple[dict[Sizes, float], dict[Sizes, float]]
    traffic: dict[str, float]
    collectives: dict[str, dict[str, Any]]

    def linear(self, rows: int, inputs: int, outputs: int) -> PassCosts:
        """Return the seconds of a linear layer."""
        seconds = 2 * rows * inputs * outputs / _PEAK
        return PassCosts(
            seconds / _share(self.products, _FORWARD, (rows, inputs, outputs)),
            seconds / _share(self.products, _INPUT, (rows, outputs, inputs))
            + seconds / _share(self.products, _WEIGHT, (outputs, rows, inputs)),
        )

    def grouped_linear(self, layers: int, rows: int, inputs: int, outputs: int) -> PassCosts:
        """Return the seconds of so many linear layers, ``rows`` of each, in one kernel a pass."""
        flops = 2 * layers * rows * inputs * outputs
        forward, *backward = (
            flops / _PEAK / _share(self.grouped, each, (layers, rows, outputs, inputs))
            for each in _GROUPED
        )
        return PassCosts(forward, sum(backward))

    def scores(self, tokens: int, heads: int, kv_heads: int, key: int, value: int) -> PassCosts:
        """Return the seconds of fused attention, whose backward computes the scores again."""
        seconds = 2 * tokens**2 * heads * (key + value) / _PEAK
        sizes = tokens, heads, kv_heads, key
        forward, backward = (_nearest(table, sizes) for table in self.attention)
        return PassCosts(seconds / forward, 2.5 * seconds / backward)

    def moved(self, forward: float, backward: float, kind: str = "default") -> PassCosts:
        """Return the seconds of kernels that only move so many bytes."""
        kinds = (f"{kind}_fwd", f"{kind}_bwd") if kind == "permute" else (kind, kind)
        rates = [_B200.device.memory_bandwidth * self.traffic[each] for each in kinds]
        return PassCosts(forward / rates[0], backward / rates[1])

    def collective(self, name: str, size: float, ranks: int) -> float:
        """Return the seconds of a collective of ``size`` bytes inside the node."""
        if ranks == 1:
            return 0.0
        law = self.collectives[name]
        fixed = law.get("fixed_latency_us_by_comm_num", {}).get(str(ranks))
        fixed = law.get("fixed_latency_us", 0.0) if fixed is None else fixed
        others = ranks + law["offset"]
        rate = _B200.node_bandwidth * law["efficient_factor"] * ranks / others / law["scale"]
        return float(size / rate + 1e-6 * (fixed + law["latency_us"] * others))


def system() -> System | None:
    """Return the measured system; None without its file."""
    path = given("simumax/b200_system.json")
    return None if path is None else _system(path)


@cache
def _system(path: Path) -> System:
    read = read_json(path, dict[str, Any], "SimuMax's description of a system")
    ops = {
        name: op.get("accurate_efficient_factor") for name, op in read["accelerator"]["op"].items()
    }
    traffic = read["accelerator"]["bandwidth"]
    return System(
        {
            layout: _sizes(ops["matmul"], f"layout={layout}")
            for layout in (_FORWARD, _INPUT, _WEIGHT)
        },
        {each: _sizes(ops["group_matmul"], f"stage={each},") for each in _GROUPED},
        (_sizes(ops["sdp_fwd"]), _sizes(ops["sdp_bwd"])),
        {kind: each["efficient_factor"] for kind, each in traffic.items()},
        read["networks"]["high_intra_node"]["op"],
    )


def _sizes(table: dict[str, float], mark: str = "") -> dict[Sizes, float]:
    """Return the entries of a table that are marked so, by their first sizes but the batch."""
    found: dict[Sizes, float] = {}
    for name, share in table.items():
        if mark in name:
            numbers = re.findall(r"(\w+)=(\d+)", name)
            sizes = [int(value) for key, value in numbers if key not in ("b", "batch")]
            found.setdefault(tuple(sizes[:4]), share)
    return found


def _share(tables: dict[str, dict[Sizes, float]], name: str, sizes: Sizes) -> float:
    return _nearest(tables[name], sizes)


def _nearest(table: dict[Sizes, float], sizes: Sizes) -> float:
    """Return the entry of the sizes, or of those nearest in the sum of their ratios' logarithms."""
    if sizes in table:
        return table[sizes]
    return table[min(table, key=lambda known: _distance(known, sizes))]


@lru_cache(maxsize=4096)
def _distance(known: Sizes, sizes: Sizes) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(known, sizes, strict=True))
