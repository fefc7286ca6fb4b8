"""Figure 8 of PipeDream-2BW: depth, microbatch and batch, and what they are good for (5.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch

from experiments.pipedream_2bw.profiles import ProfileOf, gpt_profile, headless_profile
from experiments.pipedream_2bw.settings import FIGURE8, SEQUENCE
from experiments.pipedream_2bw.systems import TWO_BW, Pipelines
from experiments.pipedream_2bw.throughput.rates import simulated
from experiments.recorded.findings import Finding
from experiments.study.timing import in_turns
from pipekit import plots
from pipekit.clusters.papers import two_bw_v100
from pipekit.models.gpt import LAYOUTS
from pipekit.models.transformer import Block
from pipekit.planning.sweep import block_balance

FULL = 0.99
"""Of the slowest stage's seconds that a microbatch more must cost, if the pipeline is full."""


NETWORK = "a network of 25 Gbps, which the paper does not print"
"""What makes longer batches slower, as sums share it with activations at another time each."""

FASTER_BYTES_S = 100e9 / 8
"""Of the network instead: AWS's p3dn.24xlarge, also of 8 V100s."""


def figure8(
    batches: Sequence[int],
    profile_of: ProfileOf = gpt_profile,
    longest: int = 32,
    network: float | None = None,
) -> pd.DataFrame:
    """Return the simulated throughput of Figure 8's configurations by global batch, in sequences.

    The ``longest``, which is even, says of how many microbatches a batch is simulated, see
    :func:`batch_seconds`. Columns depth, rows (of a microbatch), batch and throughput
    (sequences/s); where a batch has fewer microbatches than stages there is no row.  The
    ``network`` between servers has so many bytes/s, or as many as AWS's.
    """
    cluster, found = two_bw_v100(), list[dict[str, float]]()
    if network is not None:
        cluster = cluster.calibrated(cluster.levels[-1].name, network, "as supposed")
    for depth, rows in FIGURE8:
        job = Pipelines(profile_of("1.3B", rows), cluster, depth, cluster.workers // depth, depth)
        counts = [batch * depth // job.batch for batch in batches if batch >= job.batch]
        for count, seconds in batch_seconds(job, counts, longest).items():
            batch = replace(job, microbatches=count).batch
            throughput = batch / seconds
            found.append({"depth": depth, "rows": rows, "batch": batch, "throughput": throughput})
    return pd.DataFrame(found)


def batch_seconds(job: Pipelines, counts: Sequence[int], longest: int) -> dict[int, float]:
    """Return the seconds of a batch of so many microbatches, by their number.

    Those beyond the ``longest`` are not simulated but added at the price of the last ones, since a
    pipeline that is full repeats itself.  It is not full as long as they cost less than the slowest
    stage computes, as they are hidden behind sums of gradients over slow links: then twice as many
    are simulated.
    """

    @cache
    def seconds(count: int) -> float:
        return simulated(replace(job, microbatches=count), TWO_BW)

    def price(count: int) -> float:
        return (seconds(count) - seconds(count // 2)) / (count - count // 2)

    full = min(longest, max(counts))
    while full < max(counts) and price(full) < FULL * job.slowest_s:
        full = min(2 * full, max(counts))
    return {
        count: seconds(count) if count <= full else seconds(full) + (count - full) * price(full)
        for count in counts
    }


def compute_and_bytes(size: str, depths: Sequence[int], rows: int) -> pd.DataFrame:
    """Return a middle stage's seconds of compute and bytes to the next, a microbatch (5.4)."""
    profile, found = gpt_profile(size, rows), []
    for depth in depths:
        first, length, *_ = block_balance(profile, depth)
        stage = profile.stage(first, first + length)
        seconds = stage.forward_s + stage.backward_s
        found.append({"depth": depth, "compute_s": seconds, "bytes": stage.output_bytes})
    return pd.DataFrame(found)


def block_rates(
    rows: Sequence[int], hidden: int, heads: int, tokens: int, repeats: int
) -> list[list[float]]:
    """Return the samples a second, measured here, of one block's forward and backward (5.4).

    On one core, in its own seconds: what other programs take of it does not count. Rows of a
    microbatch take turns, each with as many samples as the largest has, so that all turns take
    about as long; returned is each of ``repeats`` turns, besides one to warm up.
    """
    block = Block(hidden, heads, causal=True, norm="pre")

    inputs = [torch.randn(count, tokens, hidden, requires_grad=True) for count in rows]

    def passes(x: torch.Tensor) -> None:
        for _ in range(max(rows) // len(x)):
            block(x).sum().backward()

    took = in_turns([partial(passes, x) for x in inputs], 1 + repeats)[1:]
    samples = [max(rows) // count * count for count in rows]
    return [[float(rate) for rate in np.asarray(samples) / turn] for turn in took]


FEW_TOKENS = 4
"""Of a sample that leaves a core as empty as the paper's samples leave a V100."""


def block_finding(rows: Sequence[int], hidden: int, tokens: int, repeats: int) -> Finding:
    """Return :func:`block_rates` with 8 heads, and those of samples of :data:`FEW_TOKENS`."""
    turns, few = (block_rates(rows, hidden, 8, each, repeats) for each in (tokens, FEW_TOKENS))
    measured, changed = (np.median(each, axis=0).tolist() for each in (turns, few))
    note = (
        f"b = {list(rows)}, one block of hidden size {hidden}, {tokens} tokens, one core, median "
        "of the turns"
    )
    found = Finding.measured("2bw-sec54-larger-b-faster", measured, note).over(turns)
    instead = f"samples of {FEW_TOKENS} tokens"
    return found.because("a core is full with a single sample", changed, "measured", instead)


@dataclass(frozen=True)
class Figure8:
    """Throughput over the batch; ``headless`` at the largest, as if logits took no time.

    ``faster`` are the curves with :data:`FASTER_BYTES_S` between servers.
    """

    curves: pd.DataFrame
    headless: pd.DataFrame
    faster: pd.DataFrame

    @property
    def named(self) -> pd.DataFrame:
        """The curves, named "(d, b)"."""
        return _named(self.curves)

    @property
    def by_configuration(self) -> pd.DataFrame:
        """Throughput, a row a batch and a column a curve."""
        return _by_configuration(self.curves)

    @property
    def across_servers(self) -> pd.Series:
        """Whether four stages, whose replicas are on several servers, are slower than eight."""
        return self.by_configuration["(4, 1)"] < self.by_configuration["(8, 1)"]

    @property
    def _below(self) -> str:
        return f"{int(self.across_servers.sum())} of {len(self.across_servers)} batch sizes"

    def figure(self) -> go.Figure:
        """Draw the curves."""
        batches = sorted(self.curves["batch"].unique())
        title = f"Four stages, their replicas across servers, are slower at {self._below}"
        x, y = "global batch (sequences)", "sequences/s"
        drawn = self.named.rename(columns={"batch": x, "throughput": y})
        figure = plots.points(drawn, x, y, "(d, b)", title=title, label="simulated")
        figure.update_xaxes(type="log", tickvals=batches, ticktext=batches, range=[1.75, 3.65])
        return figure.update_yaxes(range=[0, 1.1 * drawn[y].max()])

    def findings(self) -> list[Finding]:
        """Return what depth, microbatch and batch are good for."""
        table, workers, figure = self.by_configuration, two_bw_v100().workers, "figure8.svg"
        steps, last = float(table.diff().min().min()), table.iloc[-1]
        shared = table[["(8, 1)", "(8, 32)"]].dropna()
        larger = bool((shared["(8, 32)"] > shared["(8, 1)"]).all())
        without = self.headless.set_index(["depth", "rows"])["throughput"]
        holds = steps > 0 and larger and bool(self.across_servers.all())
        note = (
            f"rises with the batch: {steps > 0}; b = 32 above b = 1: {larger}; d = 4 below d = "
            f"8 at {self._below}. The logits on the last stage explain little: without their time "
            f"d = 4 would have {without[4, 1] / without[8, 1]:.2f} of the throughput of d = 8 at "
            f"{table.index[-1]} sequences, in place of {last['(4, 1)'] / last['(8, 1)']:.2f}. With "
            "d = 8 replicas share a server and activations cross the network (3.3), at every "
            "microbatch; with d = 4 sums cross it, too, once a batch, and long batches hide them"
        )
        return [
            Finding.simulated("2bw-fig8-throughput-vs-batch", holds, note, figure),
            Finding.simulated("2bw-sec54-accumulation-raises", steps, figure=figure).because(
                NETWORK,
                float(_by_configuration(self.faster).diff().min().min()),
                changed=f"{8e-9 * FASTER_BYTES_S:g} Gbps between servers",
            ),
            Finding.exact("2bw-fig8-cross-server-w", [workers // depth for depth in (4, 8)]),
        ]


def run_figure8(doublings: int, longest: int) -> Figure8:
    """Return Figure 8 for batches from 64 sequences on; ``longest`` as for :func:`figure8`."""
    batches = [64 * 2**k for k in range(doublings + 1)]
    headless = figure8(batches[-1:], headless_profile, longest)
    faster = figure8(batches, longest=longest, network=FASTER_BYTES_S)
    return Figure8(figure8(batches, longest=longest), headless, faster)


def _named(curves: pd.DataFrame) -> pd.DataFrame:
    names = [f"({d}, {b})" for d, b in zip(curves["depth"], curves["rows"], strict=True)]
    return curves.assign(**{"(d, b)": names})


def _by_configuration(curves: pd.DataFrame) -> pd.DataFrame:
    return _named(curves).pivot(index="batch", columns="(d, b)", values="throughput")


def compute_finding() -> Finding:
    """Return whether compute falls with the depth while bytes to the next stage stay."""
    parts = compute_and_bytes("1.3B", [4, 6, 8, 12, 24], rows=8)
    numbers = 8 * SEQUENCE * LAYOUTS["1.3B"].hidden
    whole = parts["compute_s"] * parts["depth"]
    stay = (parts["bytes"] == 2 * numbers).all() and (whole / whole[0] - 1).abs().max() < 1e-12
    note = f"{numbers:,} numbers of 2 bytes pass on at every depth; compute is {whole[0]:.3f} s / d"
    return Finding.exact("2bw-sec54-compute-comm-ratio", bool(stay), note)
