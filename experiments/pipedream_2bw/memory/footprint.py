"""What the paper's GPTs need of a 16-GB V100, by system: Figure 7, and what cannot fit (5, 5.3).

One memory model for all: weights and gradients of 2 bytes, 12 bytes of master copy and moments a
parameter (:data:`STATE_BYTES`), activations of 2 bytes.  Microbatches are recomputed by stage
(section 4.1), but for logits and loss, which every microbatch keeps from its forward to its
backward, as in Megatron, from which the authors adapted their implementation.  What a stage has
sent waits at the next one: a worker has the inputs of as many microbatches as the stage before it
has in flight.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream_2bw.memory import footprint
from experiments.pipedream_2bw.memory.formulas import BATCHES
from experiments.pipedream_2bw.profiles import gpt_profile
from experiments.pipedream_2bw.settings import FIGURE6, PRINTED_PARAMETERS
from experiments.pipedream_2bw.systems import (
    FLUSH,
    GPIPE,
    INTER_LAYER,
    TABLES,
    TWO_BW,
    Pipelines,
)
from experiments.pipedream_2bw.throughput.panels import panels
from experiments.recorded.findings import Finding
from experiments.study.figures import named_rows, with_line
from experiments.study.search import largest_that_fits
from pipekit.clusters import V100
from pipekit.clusters.papers import two_bw_v100
from pipekit.planning.layer_ranges import Floats
from pipekit.schedules import check, pipedream
from pipekit.schedules.check import Report

RECOMPUTED, KEPT = "logits and losses are recomputed, too", "the last stage keeps them"
"""What makes GPipe fit, by the formula of section 3.1, and what is done instead."""

GIB = 2**30
"""Bytes of a "GB" of a V100's 16 (:mod:`pipekit.clusters.papers`)."""

CAPACITY = V100.memory_bytes / GIB
"""GB of a worker."""

MEGATRON_CAPACITY = 32.0
"""GB of the GPUs on which Megatron trained 8.3 billion parameters (section 5.5)."""


def held(job: Pipelines, system: str, *, recompute: bool = True, keeps_loss: bool = True) -> Floats:
    """Return a worker's GB on each stage; ``keeps_loss``: logits and loss are not recomputed."""
    return _held(job, _counts(system, job.depth, job.microbatches), recompute, keeps_loss)


def held_by_pipedream(size: str, depth: int, rows: int) -> Floats:
    """Return the same for PipeDream, which does not accumulate (section 2)."""
    job = Pipelines(gpt_profile(size, rows), two_bw_v100(), depth, 1, 1)
    return _held(job, check(pipedream(depth).take(2 * depth)), True, True)


def held_by_data_parallelism(size: str) -> float:
    """Return what a worker holds that has all layers, in GB, with one sequence at a time."""
    return float(held(Pipelines(gpt_profile(size), two_bw_v100(), 1, 1, 1), FLUSH)[0])


def largest_microbatch(size: str, depth: int, recompute: bool) -> int:
    """Return the most sequences of a microbatch with which 2BW fits at d = m; 0: none does."""
    one = Pipelines(gpt_profile(size), two_bw_v100(), depth, 1, depth)

    def fits(rows: int) -> bool:
        job = replace(one, profile=one.profile.scaled(rows))
        return bool(held(job, TWO_BW, recompute=recompute).max() <= CAPACITY)

    return largest_that_fits(fits)


@cache
def _counts(system: str, depth: int, microbatches: int) -> Report:
    return check(TABLES[system](depth, microbatches).take(BATCHES))


def _held(job: Pipelines, report: Report, recompute: bool, keeps_loss: bool) -> Floats:
    in_flight = np.array(report.peak_in_flight)
    total = job.bytes_of(in_flight.tolist(), report.peak_versions, keeps_loss, recompute)
    passed = [job.profile.boundary_bytes(int(first)) for first in np.cumsum(job.balance)[:-1]]
    total[1:] += (in_flight[:-1] - in_flight[1:]) * passed  # arrived, and waiting
    return total / GIB


def panel_a() -> Mapping[int, Pipelines]:
    """Return what Figure 6's panel a runs, by batch."""
    return panels()["a"]


def footprints(jobs: Mapping[int, Pipelines]) -> pd.DataFrame:
    """Return Figure 7: the fullest worker's GB of each system, by batch of panel a (simulated)."""
    return pd.DataFrame(
        {
            "system": system,
            "batch": f"batch {batch}",
            "GB": held(job, system, keeps_loss=False).max(),
            "logits kept": held(job, system).max(),
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
    """Return Figure 7's footprints, by the formula of section 3.1; arguments as of the others.

    By it, GPipe fits at a batch of 64, where the paper runs out of memory (5.3).  It does not if
    the last stage keeps the logits of all microbatches, which no line of the paper says.
    """
    few, many = jobs
    at_few = table[table["batch"] == f"batch {few}"].set_index("system")
    waits = at_few["GB"][FLUSH] - at_few["GB"][INTER_LAYER]
    fullest = (
        "the fullest worker is the last, which has the logits; Flush's next input waits "
        f"there, {waits:.3f} GB"
    )
    kept = (
        "a contradiction within the paper: by its formula (3.1) GPipe fits; with the logits and "
        "losses of all 8 microbatches kept on the last worker, which nothing in it says, "
        f"{at_few['logits kept'][GPIPE]:.1f} GB"
    )
    all_kept = held(jobs[many], GPIPE, recompute=False).max()
    sizes = (
        f"m = {jobs[many].microbatches}; at m = {jobs[few].microbatches} "
        f"{at_few['nothing recomputed'][GPIPE]:.1f} GB"
    )
    needed, with_logits = at_few["GB"].tolist(), at_few["logits kept"].tolist()
    figure7 = Finding.simulated("2bw-fig7-memory", needed, f"{fullest}; {kept}", "figure7.svg")
    full = Finding.simulated("2bw-sec53-gpipe-oom-64", needed[-1], kept, "figure7.svg")
    return [
        figure7.because(RECOMPUTED, with_logits, changed=KEPT),
        full.because(RECOMPUTED, with_logits[-1], changed=KEPT),
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
