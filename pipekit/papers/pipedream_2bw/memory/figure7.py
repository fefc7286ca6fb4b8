"""Figure 7 of PipeDream-2BW: each system's footprint on a 16-GB V100, and what cannot fit (5.3)."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream_2bw.memory import footprint
from pipekit.papers.pipedream_2bw.memory.footprint import CAPACITY, held
from pipekit.papers.pipedream_2bw.settings import FIGURE6, PRINTED_PARAMETERS
from pipekit.papers.pipedream_2bw.systems import (
    FLUSH,
    GPIPE,
    INTER_LAYER,
    TABLES,
    Pipelines,
)
from pipekit.plots import style


def footprints(jobs: Mapping[int, Pipelines]) -> pd.DataFrame:
    """Return the fullest worker's GB of each system, by batch (simulated): Figure 7.

    Args:
        jobs: of Figure 6's panel a, by batch.
    """
    return pd.DataFrame(
        {
            "system": system,
            "place": place,
            "batch": f"batch {batch}",
            "GB": held(job, system).max(),
            "logits recomputed too": held(job, system, keeps_loss=False).max(),
            "nothing recomputed": held(job, system, recompute=False).max(),
        }
        for batch, job in jobs.items()
        for place, system in enumerate(TABLES)
    )


def footprint_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`footprints`, and what a V100 has."""
    few, many = table["batch"].unique()
    needed = table[table["batch"] == few]["GB"].tolist()
    beside = table["batch"].map({few: -0.05, many: 0.05})
    figure = plots.points(
        table.assign(place=table["place"] + beside),
        x="place",
        y="GB",
        color="batch",
        title=f"GPT 2.2B, 8 GPUs: GPipe needs {needed[-1]:.1f} GB at {few}, 2BW {needed[-2]:.1f}",
        label="simulated",
        x_title="the fullest of 8 workers",
        y_title="GB",
    )
    figure.add_scatter(
        x=[-0.3, len(TABLES) - 0.7],
        y=[CAPACITY] * 2,
        mode="lines",
        name="16-GB V100",
        line={"color": style.GREY, "dash": "dash", "width": 1.5},
    )
    names = list(TABLES)
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, range=[-0.3, 3.3])
    return figure.update_yaxes(range=[0, 1.05 * table["GB"].max()])


def footprint_findings(table: pd.DataFrame, jobs: Mapping[int, Pipelines]) -> list[Finding]:
    """Return Figure 7's footprints, and that GPipe does not fit; arguments as of the others."""
    few, many = jobs
    at_few = table[table["batch"] == f"batch {few}"].set_index("system")
    waits = at_few["GB"][FLUSH] - at_few["GB"][INTER_LAYER]
    return [
        Finding(
            "2bw-fig7-memory",
            at_few["GB"].tolist(),
            "simulated",
            "the fullest worker is the last, which has the logits; Flush's next input waits "
            f"there, {waits:.3f} GB",
            "figure7.svg",
        ),
        Finding(
            "2bw-sec53-gpipe-oom-64",
            at_few["GB"].iloc[-1],
            "simulated",
            "logits and loss of all 8 microbatches on the last worker; "
            f"{at_few['logits recomputed too'][GPIPE]:.1f} GB if logits were recomputed too",
            "figure7.svg",
        ),
        Finding(
            "2bw-recompute-required-gpipe",
            held(jobs[many], GPIPE, recompute=False).max(),
            "simulated",
            f"m = {jobs[many].microbatches}; at m = {jobs[few].microbatches} "
            f"{at_few['nothing recomputed'][GPIPE]:.1f} GB",
        ),
    ]


def cannot_fit_findings() -> list[Finding]:
    """Return what data parallelism and PipeDream need, and the largest microbatches of 2BW."""
    alone = [footprint.held_by_data_parallelism(size) for size in PRINTED_PARAMETERS]
    shared = {}
    for size, depth, letter in (("1.3B", 8, "a"), ("2.2B", 8, "a"), ("3.8B", 16, "c")):
        panel = FIGURE6[letter]
        rows = panel.batches[0] // panel.width
        shared[size] = footprint.held_by_pipedream(size, depth, rows).max()
    return [
        Finding(
            "2bw-baseline-cannot-fit",
            [*alone, shared["2.2B"], shared["3.8B"]],
            "simulated",
            f"PipeDream at 1.3B: {shared['1.3B']:.1f} GB, d = 8; minibatches of 64, 64 and 128",
        ),
        Finding(
            "2bw-recompute-larger-b",
            [footprint.largest_microbatch("2.2B", 8, again) for again in (False, True)],
            "simulated",
            "2BW, the 2.2B GPT at d = 8 on 16-GB V100s",
        ),
    ]
