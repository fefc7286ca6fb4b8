"""Figure 8 of PipeDream-2BW: depth, microbatch and batch, and what they are good for (5.4)."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import torch

from pipekit.clusters.papers import two_bw_v100
from pipekit.models.transformer import Block
from pipekit.papers.pipedream_2bw.profiles import ProfileOf, gpt_profile
from pipekit.papers.pipedream_2bw.settings import FIGURE8
from pipekit.papers.pipedream_2bw.systems import TWO_BW, Job
from pipekit.papers.pipedream_2bw.throughput import simulated
from pipekit.planning.sweep import block_balance


def figure8(
    batches: Sequence[int], profile_of: ProfileOf = gpt_profile, longest: int = 32
) -> pd.DataFrame:
    """Return the simulated throughput of Figure 8's configurations.

    Args:
        batches: global batch sizes, in sequences.
        profile_of: one of :mod:`pipekit.papers.pipedream_2bw.profiles`.
        longest: microbatches of a batch, even; more are not simulated but added at the price of the
            last ones, since a pipeline that is full repeats itself.

    Returns:
        Columns depth, rows (of a microbatch), batch and throughput (sequences/s); where a batch has
        fewer microbatches than stages there is no row.
    """
    cluster, found = two_bw_v100(), []
    for depth, rows in FIGURE8:
        job = Job(profile_of("1.3B", rows), cluster, depth, cluster.workers // depth, depth)
        counts = [batch * depth // job.batch for batch in batches if batch >= job.batch]
        seconds = {
            count: simulated(replace(job, microbatches=count), TWO_BW)
            for count in {longest // 2, longest, *counts}
            if count <= min(longest, max(counts))
        }
        for count in counts:
            took = seconds[min(count, longest)]
            if count > longest:
                again = 2 * (seconds[longest] - seconds[longest // 2]) / longest
                took += (count - longest) * again
            batch = replace(job, microbatches=count).batch
            found.append({"depth": depth, "rows": rows, "batch": batch, "throughput": batch / took})
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

    On one core, in its own seconds: what other programs take of it does not count.

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
            start = time.thread_time()
            block(x).sum().backward()
            best[count] = min(best[count], time.thread_time() - start)
    return [count / best[count] for count in rows]
