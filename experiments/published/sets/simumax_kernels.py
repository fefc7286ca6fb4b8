"""Passes on a node of B200 by the kernels that SimuMax timed one by one: shares of the data sheet
that they reach, by shape, in the file of its system."""

import math
import re
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


class System:
    """The tables of the file."""

    def __init__(self, path: Path) -> None:
        read = read_json(path, dict[str, Any], "SimuMax's description of a system")
        tables = read["accelerator"]
        ops = {name: op.get("accurate_efficient_factor") for name, op in tables["op"].items()}
        layouts = _FORWARD, _INPUT, _WEIGHT
        # By layout, then by (m, k, n); by pass, then by (products, m, n, k).
        self.products = {each: _sizes(ops["matmul"], f"layout={each}") for each in layouts}
        self.grouped = {each: _sizes(ops["group_matmul"], f"stage={each},") for each in _GROUPED}
        # Forward and backward, by (tokens, heads, key heads, width); the whole square counts.
        self.attention = _sizes(ops["sdp_fwd"]), _sizes(ops["sdp_bwd"])
        traffic = tables["bandwidth"].items()  # of the memory's bandwidth, by kind of kernel
        self.traffic: dict[str, float] = {kind: x["efficient_factor"] for kind, x in traffic}
        self.collectives: dict[str, Any] = read["networks"]["high_intra_node"]["op"]

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


_system = cache(System)


def system() -> System | None:
    path = given("simumax/b200_system.json")
    return None if path is None else _system(path)


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
    return table[min(table, key=lambda known: _distance(known, sizes))]


@lru_cache(maxsize=4096)
def _distance(known: Sizes, sizes: Sizes) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(known, sizes, strict=True))


def layer_passes(timed: System, run: TrainingSetup, layer: Layer) -> PassCosts:
    """Return a layer's passes of a microbatch on a rank; ValueError if nothing like it was timed.

    Numbers have 2 bytes; norm, residual connection and tensor-parallel collectives are included.
    """
    hidden, tokens, layout = run.shape.hidden, int(run.tokens), run.layout
    linear, moved, collective = timed.linear, timed.moved, timed.collective
    all_heads = getattr(layer, "heads", 0)
    heads, over = divmod(all_heads, layout.tp * layout.cp)
    if over:
        raise ValueError(f"tp {layout.tp} x cp {layout.cp} does not divide {all_heads} heads")
    here = heads * layout.cp  # of a tensor-parallel rank, before cp divides them again

    def exchanged(*widths: int) -> PassCosts:
        """Return the passes in which ranks of a sequence exchange tokens for heads, and back."""
        seconds = sum(collective("all2all", 2 * tokens * width, layout.cp) for width in widths)
        return PassCosts(seconds, seconds)

    def mlp(width: int, gated: bool) -> list[PassCosts]:
        own = width // layout.tp
        products = linear(tokens, hidden, (1 + gated) * own), linear(tokens, own, hidden)
        return [*products, moved((4 + 2 * gated) * tokens * own, (6 + 4 * gated) * tokens * own)]

    match layer:
        case Attention():
            kv_heads, width = max(layer.kv_heads // layout.tp, 1), layer.head_dim
            projected = (here + 2 * kv_heads) * width
            shared = max(kv_heads // layout.cp, 1)
            inside = [
                linear(tokens, hidden, projected),
                linear(tokens, here * width, hidden),
                timed.scores(run.seq_tokens, heads, shared, width, width),
                moved(4 * tokens * projected, 4 * tokens * projected),
                exchanged(here * width, here * width, 2 * kv_heads * width),
            ]
        case LatentAttention():
            value, key = layer.head_dim, layer.head_dim + layer.rope_dim
            ranks, rotated = layer.query_rank + layer.kv_rank, 5 * tokens * here * (2 * key + value)
            inside = [
                linear(tokens, hidden, layer.query_rank),
                linear(tokens, layer.query_rank, here * key),
                linear(tokens, hidden, layer.kv_rank + layer.rope_dim),
                linear(tokens, layer.kv_rank, here * 2 * value),
                linear(tokens, here * value, hidden),
                timed.scores(run.seq_tokens, heads, heads, key, value),
                moved(4 * tokens * ranks, 6 * tokens * ranks),
                moved(rotated, rotated),
                exchanged(here * key, here * key, here * value, here * value),
            ]
        case MLP():
            inside = mlp(layer.width, layer.gated)
        case Experts():  # shared expert, router, grouped products, exchange
            visits, local = tokens * layer.active, layer.count // layout.ep
            rows = math.ceil(visits / layer.count) * layout.ep
            sent = 2 * visits * hidden
            exchange = 2 * collective("all2all", sent, layout.ep)
            in_order = 4 * sent * (1 + (layout.ep > 1))
            inside = [
                *(mlp(layer.shared_width, layer.gated) if layer.shared_width else ()),
                linear(tokens, hidden, layer.count),
                timed.grouped_linear(local, rows, hidden, 2 * layer.width),
                timed.grouped_linear(local, rows, layer.width, hidden),
                moved(6 * visits * layer.width, 10 * visits * layer.width),
                moved(in_order, in_order, "permute"),
                PassCosts(exchange, exchange),
            ]
        case _:
            raise ValueError(f"nothing was timed for a layer like {layer}")
    size = 2 * tokens * hidden
    gather = collective("all_gather", size, layout.tp)
    scatter = collective("reduce_scatter", size, layout.tp)
    around = PassCosts(gather + scatter, 2 * gather + scatter)
    return total(moved(5 * size / layout.tp, 5 * size / layout.tp), around, *inside)


def head_passes(timed: System, run: TrainingSetup) -> PassCosts:
    """Return the passes of the logits and their loss on a rank."""
    tokens, hidden, tp = int(run.tokens), run.shape.hidden, run.layout.tp
    vocabulary, gather = run.shape.vocabulary // tp, 2 * tokens * hidden
    gather_s = timed.collective("all_gather", gather, tp)
    loss = timed.moved(4 * tokens * vocabulary, 4 * tokens * vocabulary, "ce_fusion")
    return total(timed.linear(tokens, hidden, vocabulary), loss, PassCosts(gather_s, gather_s))
