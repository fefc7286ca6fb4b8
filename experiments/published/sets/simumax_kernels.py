"""Passes on a node of B200 by the kernels that SimuMax timed one by one: shares of the data sheet
that they reach, by shape, in the file of its system."""

import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from experiments.published.published_set import given
from pipekit.performance.devices import machine
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.shapes import MLP, Attention, Experts, LatentAttention, Layer, Shape
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.reading import read_json

_B200 = machine("B200")
_PEAK = _B200.peak("bfloat16")
_FORWARD, _INPUT, _WEIGHT = "TN", "NN", "NT"
"""Layouts of a linear layer's products: of its output, and of the gradients of input and weight."""
_GROUPED = "fwd", "bwd_grad_act", "bwd_grad_w"

Sizes = tuple[int, ...]
Shares = dict[Sizes, float]
"""Of a peak, by sizes."""


@dataclass(frozen=True)
class System:
    """The tables of the file.

    Attributes:
        products: by layout, then by (m, k, n).
        grouped: by pass, then by (products, m, n, k).
        attention: forward and backward, by (tokens, heads, key heads, width); the whole square
            counts.
        traffic: the share of the memory's bandwidth by kind of kernel.
        collectives: by name, as the file has them.
    """

    products: dict[str, Shares]
    grouped: dict[str, Shares]
    attention: tuple[Shares, Shares]
    traffic: dict[str, float]
    collectives: dict[str, dict[str, Any]]

    def linear(self, rows: int, inputs: int, outputs: int) -> PassCosts:
        """Return the seconds of a linear layer."""
        seconds = 2 * rows * inputs * outputs / _PEAK
        return PassCosts(
            seconds / _nearest(self.products[_FORWARD], (rows, inputs, outputs)),
            seconds / _nearest(self.products[_INPUT], (rows, outputs, inputs))
            + seconds / _nearest(self.products[_WEIGHT], (outputs, rows, inputs)),
        )

    def grouped_linear(self, layers: int, rows: int, inputs: int, outputs: int) -> PassCosts:
        """Return the seconds of so many linear layers, ``rows`` of each, in one kernel a pass."""
        flops = 2 * layers * rows * inputs * outputs
        sizes = layers, rows, outputs, inputs
        forward, *backward = (
            flops / _PEAK / _nearest(self.grouped[each], sizes) for each in _GROUPED
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
    layouts, traffic = (_FORWARD, _INPUT, _WEIGHT), read["accelerator"]["bandwidth"]
    return System(
        {each: _sizes(ops["matmul"], f"layout={each}") for each in layouts},
        {each: _sizes(ops["group_matmul"], f"stage={each},") for each in _GROUPED},
        (_sizes(ops["sdp_fwd"]), _sizes(ops["sdp_bwd"])),
        {kind: each["efficient_factor"] for kind, each in traffic.items()},
        read["networks"]["high_intra_node"]["op"],
    )


def _sizes(table: dict[str, float], mark: str = "") -> Shares:
    """Return the entries of a table that are marked so, by their first sizes but the batch."""
    found: Shares = {}
    for name, share in table.items():
        if mark in name:
            numbers = re.findall(r"(\w+)=(\d+)", name)
            sizes = [int(value) for key, value in numbers if key not in ("b", "batch")]
            found.setdefault(tuple(sizes[:4]), share)
    return found


def _nearest(table: Shares, sizes: Sizes) -> float:
    """Return the entry of the sizes, or of those nearest in the sum of their ratios' logarithms."""
    if sizes in table:
        return table[sizes]
    return table[min(table, key=lambda known: _distance(known, sizes))]


@lru_cache(maxsize=4096)
def _distance(known: Sizes, sizes: Sizes) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(known, sizes, strict=True))


class Rank:
    """The passes of a microbatch of 2-byte numbers on a rank."""

    def __init__(self, timed: System, shape: Shape, layout: ParallelLayout, seq: int) -> None:
        self._timed, self._shape, self._layout, self._seq = timed, shape, layout, seq
        self._hidden, self._tp, self._cp = shape.hidden, layout.tp, layout.cp
        self._tokens = layout.microbatch_samples * seq // layout.cp
        self.hidden_bytes = 2 * self._tokens * shape.hidden  # of the residual stream

    def layer(self, layer: Layer) -> PassCosts:
        """Return the passes of a layer; ValueError if nothing like it was timed."""
        match layer:
            case Attention():
                inside = self._attention(layer)
            case LatentAttention():
                inside = self._latent_attention(layer)
            case MLP():
                inside = self._mlp(layer.width)
            case Experts():
                inside = self._experts(layer)
            case _:
                raise ValueError(f"nothing was timed for a layer like {layer}")
        # Norm, residual connection and tensor-parallel collectives.
        gather, scatter = self._collected("all_gather"), self._collected("reduce_scatter")
        moved = 5 * self.hidden_bytes / self._tp
        around = PassCosts(gather + scatter, 2 * gather + scatter)
        return total([self._timed.moved(moved, moved), around, *inside])

    def head(self) -> PassCosts:
        """Return the passes of logits and fused cross entropy."""
        vocabulary = self._shape.vocabulary // self._tp
        logits, gather = 4 * self._tokens * vocabulary, self._collected("all_gather")
        return total(
            [
                self._timed.linear(self._tokens, self._hidden, vocabulary),
                self._timed.moved(logits, logits, "ce_fusion"),
                PassCosts(gather, gather),
            ]
        )

    def _collected(self, name: str) -> float:
        return self._timed.collective(name, self.hidden_bytes, self._tp)

    def _heads(self, heads: int) -> int:
        """Return how many of so many heads a rank has, which cp divides again."""
        if heads % (self._tp * self._cp):
            raise ValueError(f"tp {self._tp} x cp {self._cp} does not divide {heads} heads")
        return heads // self._tp

    def _exchanged(self, *widths: int) -> PassCosts:
        """Return the passes in which ranks of a sequence exchange tokens for heads, and back."""
        seconds = sum(
            self._timed.collective("all2all", 2 * self._tokens * width, self._cp)
            for width in widths
        )
        return PassCosts(seconds, seconds)

    def _attention(self, layer: Attention) -> list[PassCosts]:
        timed, tokens, width, cp = self._timed, self._tokens, layer.head_dim, self._cp
        heads, kv_heads = self._heads(layer.heads), max(layer.kv_heads // self._tp, 1)
        projected = (heads + 2 * kv_heads) * width
        return [
            timed.linear(tokens, self._hidden, projected),
            timed.linear(tokens, heads * width, self._hidden),
            timed.scores(self._seq, heads // cp, max(kv_heads // cp, 1), width, width),
            timed.moved(4 * tokens * projected, 4 * tokens * projected),
            self._exchanged(heads * width, heads * width, 2 * kv_heads * width),
        ]

    def _latent_attention(self, layer: LatentAttention) -> list[PassCosts]:
        timed, tokens, hidden, cp = self._timed, self._tokens, self._hidden, self._cp
        heads, value = self._heads(layer.heads), layer.head_dim
        key, ranks = value + layer.rope_dim, layer.query_rank + layer.kv_rank
        rotated = 5 * tokens * heads * (2 * key + value)
        return [
            timed.linear(tokens, hidden, layer.query_rank),
            timed.linear(tokens, layer.query_rank, heads * key),
            timed.linear(tokens, hidden, layer.kv_rank + layer.rope_dim),
            timed.linear(tokens, layer.kv_rank, heads * 2 * value),
            timed.linear(tokens, heads * value, hidden),
            timed.scores(self._seq, heads // cp, heads // cp, key, value),
            timed.moved(4 * tokens * ranks, 6 * tokens * ranks),
            timed.moved(rotated, rotated),
            self._exchanged(heads * key, heads * key, heads * value, heads * value),
        ]

    def _mlp(self, width: int) -> list[PassCosts]:
        own, tokens = width // self._tp, self._tokens
        return [
            self._timed.linear(tokens, self._hidden, 2 * own),
            self._timed.linear(tokens, own, self._hidden),
            self._timed.moved(6 * tokens * own, 10 * tokens * own),
        ]

    def _experts(self, layer: Experts) -> list[PassCosts]:
        """Return the passes of a mixture: shared expert, router, exchange, grouped products."""
        timed, hidden, ep = self._timed, self._hidden, self._layout.ep
        visits, local = self._tokens * layer.active, layer.count // ep
        rows = math.ceil(visits / layer.count) * ep
        sent = 2 * visits * hidden
        exchanged = 2 * timed.collective("all2all", sent, ep)
        in_order = 4 * sent * (1 + (ep > 1))
        return [
            *self._mlp(layer.shared_width),
            timed.linear(self._tokens, hidden, layer.count),
            timed.grouped_linear(local, rows, hidden, 2 * layer.width),
            timed.grouped_linear(local, rows, layer.width, hidden),
            timed.moved(6 * visits * layer.width, 10 * visits * layer.width),
            timed.moved(in_order, in_order, "permute"),
            PassCosts(exchanged, exchanged),
        ]
