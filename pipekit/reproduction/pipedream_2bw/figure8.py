"""Figure 8 of PipeDream-2BW: depth, microbatch and batch, and what they are good for (5.4)."""

import time
from collections.abc import Sequence

import pandas as pd
import torch

from pipekit.clusters.papers import two_bw_v100
from pipekit.models.transformer import Block
from pipekit.planning.sweep import block_balance, sweep
from pipekit.reproduction.pipedream_2bw.profiles import gpt_profile
from pipekit.reproduction.pipedream_2bw.settings import FIGURE8, OPTIMIZER_STATES


def figure8(batches: Sequence[int]) -> pd.DataFrame:
    """Return the throughput of Figure 8's configurations by 2BW's own cost model (section 4).

    Everything is recomputed, as in section 5.2.

    Args:
        batches: global batch sizes, in sequences.

    Returns:
        Columns depth, rows (of a microbatch), batch and throughput (sequences/s); where a batch has
        fewer microbatches than stages there is no row.
    """
    cluster = two_bw_v100()
    profiles = {rows: gpt_profile("1.3B", rows) for _, rows in FIGURE8}
    found = []
    for batch in batches:
        table = sweep(profiles, cluster, max_batch=batch, optimizer_states=OPTIMIZER_STATES)
        for depth, rows in FIGURE8:
            own = table[
                (table["depth"] == depth)
                & (table["width"] == cluster.workers // depth)
                & (table["microbatch_rows"] == rows)
                & table["recompute"]
            ]
            found += [
                {"depth": depth, "rows": rows, "batch": batch, "throughput": rate}
                for rate in own["throughput"]
            ]
    return pd.DataFrame(found)


def compute_and_bytes(size: str, depths: Sequence[int], rows: int) -> pd.DataFrame:
    """Return seconds of compute and bytes to the next stage, a microbatch, of a middle stage (5.4).

    Args:
        size: of the GPT.
        depths: that divide its blocks, above 2.
        rows: of the microbatch.
    """
    profile, found = gpt_profile(size, rows), []
    for depth in depths:
        first, length, *_ = block_balance(profile, depth)
        stage = profile.stage(first, first + length)
        seconds = stage.forward_s + stage.backward_s
        found.append({"depth": depth, "compute_s": seconds, "bytes": stage.output_bytes})
    return pd.DataFrame(found)


def block_rates(
    rows: Sequence[int], hidden: int, heads: int, tokens: int, repeats: int
) -> list[float]:
    """Return the samples a second, measured here, of one block's forward and backward (5.4).

    Args:
        rows: samples of a microbatch, tried in turns.
        hidden: of the block.
        heads: of the block.
        tokens: of a sample.
        repeats: of each, of which the fastest counts.
    """
    block = Block(hidden, heads, causal=True, norm="pre")
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(1 + repeats):
        for count in rows:
            x = torch.randn(count, tokens, hidden, requires_grad=True)
            start = time.perf_counter()
            block(x).sum().backward()
            best[count] = min(best[count], time.perf_counter() - start)
    return [count / best[count] for count in rows]
