"""What the planner's answers say of PipeDream-2BW's section 4, and of PipeDream's planner (6)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.pipedream_2bw.planner import checks
from experiments.pipedream_2bw.planner.checks import Answer, Problem
from experiments.pipedream_2bw.planner.profiling_modes import Errors
from experiments.pipedream_2bw.profiles import gpt_profile
from experiments.pipedream_2bw.settings import FIGURE6, OPTIMIZER_STATES
from experiments.pipedream_2bw.systems import TWO_BW
from experiments.pipedream_2bw.throughput import rates
from experiments.recorded.findings import Finding
from pipekit.clusters.papers import two_bw_v100
from pipekit.planning.sweep import sweep
from pipekit.profiling import Profile
from pipekit.simulation import simulate

ROWS = [1, 2, 4, 8, 16, 32, 64]
"""Sequences of a microbatch that the planner may choose from."""


def answer_findings(problems: Sequence[Problem], answers: Sequence[Answer]) -> list[Finding]:
    """Return whether the planner's answers are those of brute force, and within all limits."""
    error, how = max(answer.error for answer in answers), f"{len(problems)} problems"
    best = f"{how}, throughput within {error:.1g} of the best that fits"
    within = all(map(_within, problems, answers))
    decides = within and all(answer.fits for answer in answers)
    decided = (
        "w, d, b, m = d g (not only multiples of d) and recomputation; one more microbatch "
        f"would exceed the batch; {how}"
    )
    largest = all(answer.largest for answer in answers) and all(
        checks.largest_rows(each)
        == each.sweep().groupby(["depth", "recompute"])["microbatch_rows"].max().to_dict()
        for each in problems
    )
    rows = (
        f"by depth, with and without recomputation, {how}; of equally fast plans the one with "
        "the largest b"
    )
    return [
        Finding.exact("2bw-planner-exhaustive", error < 1e-9, best),
        Finding.exact("2bw-planner-memory-reject", within, how),
        Finding.exact("2bw-planner-batch-cap", within, f"{how}; b w m, and m at least d"),
        Finding.exact("2bw-planner-decides", decides, decided),
        Finding.exact("2bw-planner-largest-b", largest, rows),
        Finding.exact("2bw-equal-replication", all(answer.equally for answer in answers), how),
    ]


def _within(problem: Problem, answer: Answer) -> bool:
    """Return whether a plan fits the memory and the batch, with as many microbatches as may be."""
    plan = answer.plan
    w, d, b, m = plan.replicas[0], len(plan.stages), plan.microbatch_rows, plan.microbatches
    return bool(
        plan.memory_bytes <= problem.cluster.device.memory_bytes
        and w * b * m <= problem.max_batch < w * b * (m + 1)
        and m >= d
    )


def space_finding() -> Finding:
    """Return the largest share of m² that are pairs (w, d) with w d <= m."""
    pairs = {
        m: sum(1 for d in range(1, m + 1) for w in range(1, m + 1) if w * d <= m)
        for m in (4, 8, 16, 32, 64)
    }
    profile = gpt_profile("3.8B")
    tried = sweep(profile, two_bw_v100(), max_batch=2048, optimizer_states=OPTIMIZER_STATES)
    really = f"{len(tried[['width', 'depth']].drop_duplicates())} for {len(profile)} layers"
    note = f"m = 64: {pairs[64]} pairs of {64 * 64}; the planner tried {really}"
    most = max(count / m**2 for m, count in pairs.items())
    return Finding.exact("2bw-planner-space", most, note)


def deep_problem(blocks: int) -> Problem:
    """Return the planning of a GPT with so many of the 3.8-billion model's blocks on 64 workers."""

    def deep(rows: int) -> Profile:
        profile = gpt_profile("3.8B", rows)
        first, block, *_ = profile.layers
        return replace(profile, layers=(first, *[block] * blocks, *profile.layers[-2:]))

    return Problem({rows: deep(rows) for rows in ROWS}, two_bw_v100(), 2048, OPTIMIZER_STATES)


def time_findings(problem: Problem, ours_s: float, theirs_s: float) -> list[Finding]:
    """Return how long 2BW's and PipeDream's planners take for :func:`deep_problem`."""
    layers = len(problem.profiles[1])
    asked = f"{layers} layers, 64 workers, microbatches of {ROWS} sequences"
    both = (
        f"{theirs_s:.2f} s against {ours_s:.3f} s for {layers} layers: our PipeDream planner "
        "computes whole tables at once with numpy, and is far faster than the paper's 30 "
        "minutes; 2BW's also looks at 7 microbatch sizes and at recomputation"
    )
    return [
        Finding.measured("2bw-planner-fraction-second", ours_s, asked),
        Finding.measured("2bw-pipedream-planner-30min", theirs_s / ours_s, both),
    ]


def batch_seconds_by_placement() -> dict[str, float]:
    """Return a batch's simulated seconds on 8 servers, by where a stage's replicas are."""
    panel = FIGURE6["b"]
    job = rates.job(panel, panel.batches[0])
    neighbours = job.schedule(TWO_BW, rates.BATCHES)
    tables = {
        "replicas within a server": neighbours,
        "replicas across servers": checks.pipelines_in_servers(neighbours, job.width),
    }
    return {
        name: rates.batch_seconds(simulate(table, job.timed, job.plan, job.cluster), rates.BATCHES)
        for name, table in tables.items()
    }


def placement_finding(seconds: dict[str, float]) -> Finding:
    """Return how many times as long a batch takes if a stage's replicas are on several servers."""
    within, across = seconds.values()
    note = f"2.2B, batch {FIGURE6['b'].batches[0]}, 25 Gbps between servers"
    return Finding.simulated("2bw-same-server-allreduce", across / within, note)


def profiling_findings(found: Errors, steps: int) -> list[Finding]:
    """Return how far both ways to profile are off, and what profiling costs, for ``steps`` each."""
    errors = list(zip(found.whole, found.block, strict=True))
    medians = np.median(errors, axis=0).tolist()
    how = (
        f"12 blocks of hidden size 128; medians of {len(errors)} errors, each by the fastest of "
        f"{steps // len(errors)} steps, in one core's time"
    )
    cost = f"minutes of one core for {steps} steps of this small configuration"
    return [
        Finding.measured("2bw-profiling-two-modes", medians, how).over(map(list, errors)),
        Finding.measured("2bw-profiling-cost", found.profiling_s / 60, cost),
    ]
