"""Figure 7 of PipeDream-2BW: each system's footprint on a 16-GB V100, and what cannot fit (5.3)."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from pipekit.papers.drawing import named_rows, with_line
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream_2bw.memory import footprint
from pipekit.papers.pipedream_2bw.memory.footprint import CAPACITY, held
from pipekit.papers.pipedream_2bw.settings import FIGURE6, PRINTED_PARAMETERS
from pipekit.papers.pipedream_2bw.systems import FLUSH, GPIPE, INTER_LAYER, TABLES, Pipelines
from pipekit.papers.pipedream_2bw.throughput.panels import panels


def panel_a() -> Mapping[int, Pipelines]:
    """Return what Figure 6's panel a runs, by batch."""
    return panels()["a"]


def footprints(jobs: Mapping[int, Pipelines]) -> pd.DataFrame:
    """Return Figure 7: the fullest worker's GB of each system, by batch of panel a (simulated)."""
    return pd.DataFrame(
        {
            "system": system,
            "batch": f"batch {batch}",
            "GB": held(job, system).max(),
            "logits recomputed too": held(job, system, keeps_loss=False).max(),
            "nothing recomputed": held(job, system, recompute=False).max(),
        }
        for batch, job in jobs.items()
        for system in TABLES
    )


def footprint_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`footprints`, and what a V100 has."""
    few, many = table["batch"].unique()
    wide = table.pivot(index="system", columns="batch", values="GB").loc[list(TABLES), [few, many]]
    *_, ours, gpipe = wide[few]
    figure, _ = named_rows(
        wide,
        "GB",
        title=f"GPT 2.2B, 8 GPUs: GPipe needs {gpipe:.1f} GB at {few}, 2BW {ours:.1f}",
        label="simulated",
        x_title="GB of the fullest of 8 workers",
        apart=0.2,
    )
    return with_line(figure, [CAPACITY] * 2, [-0.4, len(wide) - 0.6], "16-GB V100")


def footprint_findings(table: pd.DataFrame, jobs: Mapping[int, Pipelines]) -> list[Finding]:
    """Return Figure 7's footprints, and that GPipe does not fit; arguments as of the others."""
    few, many = jobs
    at_few = table[table["batch"] == f"batch {few}"].set_index("system")
    waits = at_few["GB"][FLUSH] - at_few["GB"][INTER_LAYER]
    fullest = (
        "the fullest worker is the last, which has the logits; Flush's next input waits "
        f"there, {waits:.3f} GB"
    )
    kept = (
        "logits and loss of all 8 microbatches on the last worker; "
        f"{at_few['logits recomputed too'][GPIPE]:.1f} GB if logits were recomputed too"
    )
    all_kept = held(jobs[many], GPIPE, recompute=False).max()
    sizes = (
        f"m = {jobs[many].microbatches}; at m = {jobs[few].microbatches} "
        f"{at_few['nothing recomputed'][GPIPE]:.1f} GB"
    )
    needed = at_few["GB"].tolist()
    return [
        Finding.simulated("2bw-fig7-memory", needed, fullest, "figure7.svg"),
        Finding.simulated("2bw-sec53-gpipe-oom-64", needed[-1], kept, "figure7.svg"),
        Finding.simulated("2bw-recompute-required-gpipe", all_kept, sizes),
    ]


def cannot_fit_findings() -> list[Finding]:
    """Return what data parallelism and PipeDream need, and the largest microbatches of 2BW."""
    alone = [footprint.held_by_data_parallelism(size) for size in PRINTED_PARAMETERS]
    shared = []
    for size, depth, letter in (("1.3B", 8, "a"), ("2.2B", 8, "a"), ("3.8B", 16, "c")):
        panel = FIGURE6[letter]
        rows = panel.batches[0] // panel.width
        shared.append(footprint.held_by_pipedream(size, depth, rows).max())
    smallest = f"PipeDream at 1.3B: {shared[0]:.1f} GB, d = 8; minibatches of 64, 64 and 128"
    largest = [footprint.largest_microbatch("2.2B", 8, again) for again in (False, True)]
    on_v100s = "2BW, the 2.2B GPT at d = 8 on 16-GB V100s"
    return [
        Finding.simulated("2bw-baseline-cannot-fit", [*alone, *shared[1:]], smallest),
        Finding.simulated("2bw-recompute-larger-b", largest, on_v100s),
    ]
