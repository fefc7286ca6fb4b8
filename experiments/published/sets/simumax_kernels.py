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
from pipekit.performance.shapes import MLP, Attention, Experts, LatentAttention, Layer
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.training import TrainingSetup
from pipekit.reading import read_json

_B200 = machine("B200")
_PEAK = _B200.peak("bfloat16")
_FORWARD, _INPUT, _WEIGHT = "TN", "NN", "NT"
"""Layouts of a linear layer's products: of its output, and of the gradients of input and weight."""
_GROUPED = "fwd", "bwd_grad_act", "bwd_grad_w"

Sizes = tuple[int, ...]
Shares = dict[Sizes, float]  # of a peak, by sizes


@dataclass(frozen=True)
class System:
    """The tables of the file."""

    products: dict[str, Shares]  # by layout, then by (m, k, n)
    grouped: dict[str, Shares]  # by pass, then by (products, m, n, k)
    # Forward and backward, by (tokens, heads, key heads, width); the whole square counts.
    attention: tuple[Shares, Shares]
    traffic: dict[str, float]  # of the memory's bandwidth, by kind of kernel
    collectives: dict[str, dict[str, Any]]  # by name, as the file has them

    def linear(self, rows: int, inputs: int, outputs: int) -> PassCosts:
        seconds = 2 * rows * inputs * outputs / _PEAK
        return PassCosts(
            seconds / _nearest(self.products[_FORWARD], (rows, inputs, outputs)),
            seconds / _nearest(self.products[_INPUT], (rows, outputs, inputs))
            + seconds / _nearest(self.products[_WEIGHT], (outputs, rows, inputs)),
        )

    def grouped_linear(self, layers: int, rows: int, inputs: int, outputs: int) -> PassCosts:
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


@dataclass(frozen=True)
class Rank:
    """The passes of a microbatch of 2-byte numbers on a rank."""

    timed: System
    run: TrainingSetup

    @property
    def tokens(self) -> int:
        return int(self.run.tokens)

    @property
    def hidden_bytes(self) -> int:
        """Of the residual stream."""
        return 2 * self.tokens * self.run.shape.hidden

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
        moved = 5 * self.hidden_bytes / self.run.layout.tp
        around = PassCosts(gather + scatter, 2 * gather + scatter)
        return total([self.timed.moved(moved, moved), around, *inside])

    def head(self) -> PassCosts:
        shape, gather = self.run.shape, self._collected("all_gather")
        vocabulary = shape.vocabulary // self.run.layout.tp
        logits = 4 * self.tokens * vocabulary
        linear = self.timed.linear(self.tokens, shape.hidden, vocabulary)
        loss = self.timed.moved(logits, logits, "ce_fusion")
        return total([linear, loss, PassCosts(gather, gather)])

    def _collected(self, name: str) -> float:
        return self.timed.collective(name, self.hidden_bytes, self.run.layout.tp)

    def _heads(self, heads: int) -> int:
        """Return how many of so many heads a rank has, which cp divides again."""
        tp, cp = self.run.layout.tp, self.run.layout.cp
        if heads % (tp * cp):
            raise ValueError(f"tp {tp} x cp {cp} does not divide {heads} heads")
        return heads // tp

    def _exchanged(self, *widths: int) -> PassCosts:
        """Return the passes in which ranks of a sequence exchange tokens for heads, and back."""
        sizes, cp = (2 * self.tokens * width for width in widths), self.run.layout.cp
        seconds = sum(self.timed.collective("all2all", size, cp) for size in sizes)
        return PassCosts(seconds, seconds)

    def _attention(self, layer: Attention) -> list[PassCosts]:
        timed, tokens, hidden, cp = (
            self.timed,
            self.tokens,
            self.run.shape.hidden,
            self.run.layout.cp,
        )
        heads, kv_heads = self._heads(layer.heads), max(layer.kv_heads // self.run.layout.tp, 1)
        width = layer.head_dim
        projected = (heads + 2 * kv_heads) * width
        return [
            timed.linear(tokens, hidden, projected),
            timed.linear(tokens, heads * width, hidden),
            timed.scores(self.run.seq_tokens, heads // cp, max(kv_heads // cp, 1), width, width),
            timed.moved(4 * tokens * projected, 4 * tokens * projected),
            self._exchanged(heads * width, heads * width, 2 * kv_heads * width),
        ]

    def _latent_attention(self, layer: LatentAttention) -> list[PassCosts]:
        timed, tokens, hidden, cp = (
            self.timed,
            self.tokens,
            self.run.shape.hidden,
            self.run.layout.cp,
        )
        heads, value = self._heads(layer.heads), layer.head_dim
        key, ranks = value + layer.rope_dim, layer.query_rank + layer.kv_rank
        rotated = 5 * tokens * heads * (2 * key + value)
        return [
            timed.linear(tokens, hidden, layer.query_rank),
            timed.linear(tokens, layer.query_rank, heads * key),
            timed.linear(tokens, hidden, layer.kv_rank + layer.rope_dim),
            timed.linear(tokens, layer.kv_rank, heads * 2 * value),
            timed.linear(tokens, heads * value, hidden),
            timed.scores(self.run.seq_tokens, heads // cp, heads // cp, key, value),
            timed.moved(4 * tokens * ranks, 6 * tokens * ranks),
            timed.moved(rotated, rotated),
            self._exchanged(heads * key, heads * key, heads * value, heads * value),
        ]

    def _mlp(self, width: int) -> list[PassCosts]:
        own, hidden, tokens = width // self.run.layout.tp, self.run.shape.hidden, self.tokens
        return [
            self.timed.linear(tokens, hidden, 2 * own),
            self.timed.linear(tokens, own, hidden),
            self.timed.moved(6 * tokens * own, 10 * tokens * own),
        ]

    def _experts(self, layer: Experts) -> list[PassCosts]:
        """Return the passes of a mixture: shared expert, router, exchange, grouped products."""
        timed, hidden, ep = self.timed, self.run.shape.hidden, self.run.layout.ep
        visits, local = self.tokens * layer.active, layer.count // ep
        rows = math.ceil(visits / layer.count) * ep
        sent = 2 * visits * hidden
        exchanged = 2 * timed.collective("all2all", sent, ep)
        in_order = 4 * sent * (1 + (ep > 1))
        return [
            *self._mlp(layer.shared_width),
            timed.linear(self.tokens, hidden, layer.count),
            timed.grouped_linear(local, rows, hidden, 2 * layer.width),
            timed.grouped_linear(local, rows, layer.width, hidden),
            timed.moved(6 * visits * layer.width, 10 * visits * layer.width),
            timed.moved(in_order, in_order, "permute"),
            PassCosts(exchanged, exchanged),
        ]
