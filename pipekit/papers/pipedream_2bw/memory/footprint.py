"""What the paper's GPTs need of a 16-GB V100, by system: Figure 7, and what cannot fit (5, 5.3).

One memory model for all: weights and gradients of 2 bytes, 12 bytes of master copy and moments a
parameter (:data:`STATE_BYTES`), activations of 2 bytes.  Microbatches are recomputed by stage
(section 4.1), but for logits and loss, which every microbatch keeps from its forward to its
backward, as in Megatron, from which the authors adapted their implementation.  What a stage has
sent waits at the next one: a worker has the inputs of as many microbatches as the stage before it
has in flight.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from pipekit.clusters import V100
from pipekit.clusters.papers import two_bw_v100
from pipekit.papers.pipedream_2bw.memory.formulas import BATCHES
from pipekit.papers.pipedream_2bw.profiles import gpt_profile
from pipekit.papers.pipedream_2bw.systems import FLUSH, TABLES, TWO_BW, Pipelines
from pipekit.papers.search import largest_that_fits
from pipekit.planning.layer_ranges import Floats
from pipekit.schedules import check, pipedream
from pipekit.schedules.check import Report

GIB = 2**30
"""Bytes of a "GB" of a V100's 16 (:mod:`pipekit.clusters.papers`)."""

CAPACITY = V100.memory_bytes / GIB
"""GB of a worker."""

MEGATRON_CAPACITY = 32.0
"""GB of the GPUs on which Megatron trained 8.3 billion parameters (section 5.5)."""


def held(job: Pipelines, system: str, *, recompute: bool = True, keeps_loss: bool = True) -> Floats:
    """Return what a worker of each stage holds at most, in GB, everything recomputed or nothing.

    ``keeps_loss`` says whether logits and loss are no part of what is recomputed.
    """
    return _held(job, _counts(system, job.depth, job.microbatches), recompute, keeps_loss)


def held_by_pipedream(size: str, depth: int, rows: int) -> Floats:
    """Return the same for PipeDream, which does not accumulate (section 2)."""
    job = Pipelines(gpt_profile(size, rows), two_bw_v100(), depth, 1, 1)
    return _held(job, check(pipedream(depth, 2 * depth)), True, True)


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
    return check(TABLES[system](depth, microbatches, BATCHES))


def _held(job: Pipelines, report: Report, recompute: bool, keeps_loss: bool) -> Floats:
    in_flight = np.array(report.peak_in_flight)
    total = job.bytes_of(in_flight.tolist(), report.peak_versions, keeps_loss, recompute)
    passed = [job.profile.boundary_bytes(int(first)) for first in np.cumsum(job.balance)[:-1]]
    total[1:] += (in_flight[:-1] - in_flight[1:]) * passed  # arrived, and waiting
    return total / GIB
