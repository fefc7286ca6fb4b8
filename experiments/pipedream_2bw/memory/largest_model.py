"""The largest GPT for every depth on 64 V100s: Figure 9 of PipeDream-2BW (section 5.5).

The paper prints neither the models' dimensions nor the microbatches.  Here all have the 3.8B GPT's
blocks, equally many on every stage, microbatches of one sequence, and everything recomputed.  As in
the paper's memory model a worker has one sum of gradients; the second one that
:func:`replicate` keeps, to hide all-reduces, would take at most another 2 bytes a
parameter where there are several pipelines.
"""

from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream_2bw.memory.footprint import CAPACITY, GIB, MEGATRON_CAPACITY, held
from experiments.pipedream_2bw.profiles import gpt_profile
from experiments.pipedream_2bw.settings import STATE_BYTES, WEIGHT_BYTES
from experiments.pipedream_2bw.systems import TWO_BW, Pipelines
from experiments.recorded.findings import Finding
from experiments.study.figures import with_line
from experiments.study.search import largest_that_fits
from pipekit import plots
from pipekit.clusters.papers import two_bw_v100
from pipekit.ledger import claims
from pipekit.profiling import Profile

SIZE = "3.8B"
"""The GPT whose blocks all models have."""

MEGATRON_BYTES = 20
"""Of a parameter with float16 weights and gradients, as Megatron's own rule has them (Megatron-LM,
README, "Distributed Optimizer": 20 without one): 2 and 2, and in float32 the weight, the gradient
and Adam's two moments.  The authors adapted Megatron (section 5, "Implementation")."""

MASTER_GRADIENT_BYTES = MEGATRON_BYTES - 2 * WEIGHT_BYTES - STATE_BYTES
"""Of a parameter's gradient in float32, which other rules do not have."""


def with_blocks(count: int) -> Profile:
    """Return the costs of one sequence for a GPT of so many blocks."""
    embedding, block, *_, norm, head = gpt_profile(SIZE).layers
    return replace(gpt_profile(SIZE), layers=(embedding, *[block] * count, norm, head))


def largest(depth: int, more_bytes: float = 0) -> float:
    """Return the parameters of the largest GPT that 2BW trains at a depth d; 0: none.

    There are 64 / d pipelines; ``more_bytes`` are of each parameter, besides its weights, gradient
    and optimizer's state.
    """
    cluster = two_bw_v100()

    def job(blocks: int) -> Pipelines:
        """Return a GPT of so many blocks a stage."""
        return Pipelines(
            with_blocks(blocks * depth), cluster, depth, cluster.workers // depth, depth
        )

    def fits(blocks: int) -> bool:
        given = job(blocks)
        stages = given.plan.stages
        more = [given.profile.stage(s.first, s.stop).parameter_bytes for s in stages]
        copies = [more_bytes / WEIGHT_BYTES * size / GIB for size in more]
        return bool((held(given, TWO_BW) + copies).max() <= CAPACITY)

    blocks = largest_that_fits(fits)
    return job(blocks).profile.parameter_bytes / WEIGHT_BYTES if blocks else 0.0


def largest_models() -> pd.DataFrame:
    """Return Figure 9: depth, parameters, model and billions, by two memory models (simulated)."""
    more = {"22 bytes a parameter": MASTER_GRADIENT_BYTES, "18: no float32 gradients": 0}
    sizes = pd.DataFrame(
        {"depth": depth, "parameters": largest(depth, extra), "model": name}
        for name, extra in more.items()
        for depth in (1, 2, 4, 8, 16, 32, 64)
    )
    return sizes.assign(billions=sizes["parameters"] / 1e9)


def largest_figure(sizes: pd.DataFrame) -> go.Figure:
    """Draw :func:`largest_models`, and the one point that the paper prints."""
    printed = float(claims.load()["2bw-sec55-30b"].target) / 1e9
    depths = sorted(sizes["depth"].unique())
    ours = sizes[sizes["model"] == sizes["model"].iloc[0]]["billions"].max()
    title = f"64 V100s train {ours:.0f} billion parameters at a depth of 64"
    drawn = sizes.rename(columns={"billions": "parameters (billions)"})
    axes = "depth", "parameters (billions)", "model"
    figure = plots.curves(drawn, *axes, title=title, label="simulated")
    figure.update_xaxes(tickvals=depths[2:])
    line = [depths[0], depths[-1]], [printed] * 2
    return with_line(figure, *line, "almost 30 billion (paper)", "dot")


def largest_findings(sizes: pd.DataFrame) -> list[Finding]:
    """Return how the largest model grows with the depth, and how large it is at 64."""
    ours, without = (own["parameters"] for _, own in sizes.groupby("model", sort=False))
    why = (
        "everything that 16 GB can hold is used here, and activations of one sequence are small; "
        f"gradients as Megatron's rule has them, in float32 too; without, {without.max():.3g}; "
        "neither CUDA's context nor fragments are counted"
    )
    steps = [ours.diff().min(), ours.max()]
    return [
        Finding.simulated("2bw-fig9-max-model", steps, why, "figure9.svg"),
        Finding.simulated("2bw-sec55-30b", ours.max(), why, "figure9.svg"),
        Finding.exact("2bw-sec55-2x-memory", MEGATRON_CAPACITY / CAPACITY),
    ]
