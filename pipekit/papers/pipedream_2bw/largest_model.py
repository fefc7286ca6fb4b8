"""The largest GPT for every depth on 64 V100s: Figure 9 of PipeDream-2BW (section 5.5).

The paper prints neither the models' dimensions nor the microbatches.  Here all have the 3.8B GPT's
blocks, equally many on every stage, microbatches of one sequence, and everything recomputed.  As in
the paper's memory model a worker has one sum of gradients; the second one that
:func:`replicate` keeps, to hide all-reduces, would take at most another 2 bytes a
parameter where there are several pipelines.
"""

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from pipekit.clusters.papers import two_bw_v100
from pipekit.papers.pipedream_2bw.memory import CAPACITY, GIB, held, most
from pipekit.papers.pipedream_2bw.profiles import gpt_profile
from pipekit.papers.pipedream_2bw.settings import WEIGHT_BYTES
from pipekit.papers.pipedream_2bw.systems import TWO_BW, Job
from pipekit.profiling import Profile

SIZE = "3.8B"
"""The GPT whose blocks all models have."""

MASTER_GRADIENT_BYTES = 4
"""Of a parameter, if gradients also have a copy in float32, as Megatron's optimizer of 2020 had."""


def with_blocks(count: int) -> Profile:
    """Return the costs of one sequence for a GPT of so many blocks."""
    embedding, block, *_, norm, head = gpt_profile(SIZE).layers
    return replace(gpt_profile(SIZE), layers=(embedding, *[block] * count, norm, head))


def largest(depth: int, more_bytes: float = 0) -> float:
    """Return the parameters of the largest GPT that 2BW trains at a depth; 0: none.

    Args:
        depth: d, with 64 / d pipelines on the 64 GPUs.
        more_bytes: of each parameter, besides its weights, gradient and optimizer's state.
    """
    cluster = two_bw_v100()

    def job(blocks: int) -> Job:
        """Return a GPT of so many blocks a stage."""
        return Job(with_blocks(blocks * depth), cluster, depth, cluster.workers // depth, depth)

    def fits(blocks: int) -> bool:
        given = job(blocks)
        stages = given.plan.stages
        more = [given.profile.stage(s.first, s.stop).parameter_bytes for s in stages]
        copies = [more_bytes / WEIGHT_BYTES * size / GIB for size in more]
        return bool((held(given, TWO_BW) + copies).max() <= CAPACITY)

    blocks = most(fits)
    return job(blocks).profile.parameter_bytes / WEIGHT_BYTES if blocks else 0.0


def by_depth(depths: Iterable[int], more_bytes: float = 0) -> pd.DataFrame:
    """Return depth and parameters of :func:`largest`, a row a depth."""
    rows = [(depth, largest(depth, more_bytes)) for depth in depths]
    return pd.DataFrame(rows, columns=["depth", "parameters"])
