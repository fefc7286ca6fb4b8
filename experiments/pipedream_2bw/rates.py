"""How long a batch takes with each system (5.2, 5.4): simulated, emulated, or by a cost model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import pandas as pd

from experiments import study
from experiments.pipedream_2bw.systems import SYSTEMS, TENSOR_MP, TWO_BW, Pipelines
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.schedules import Schedule
from pipekit.simulation import simulate
from pipekit.traces import Trace

BATCHES = 4
"""Batches of a run without flushes: the first fills the pipeline, and of several pipelines the
second waits for no sum of gradients."""

FULL = 0.99
"""Of the slowest stage's seconds that a microbatch more must cost, if the pipeline is full."""


def simulated(job: Pipelines, system: str) -> float:
    """Return the simulated seconds of a batch in steady state."""
    if system == TENSOR_MP:
        return tensor_mp_seconds(job)
    return _seconds(job, system, lambda table: simulate(table, job.timed, job.plan, job.cluster))


def emulated(job: Pipelines, system: str, faster: float) -> float:
    """Return a batch's seconds on the real engine, as if compute and links were not sped up."""
    how = job.timed, job.plan, job.cluster, faster
    return _seconds(job, system, lambda table: study.emulate_at_pace(table, *how).trace)


def tensor_mp_seconds(job: Pipelines) -> float:
    """Return the seconds of a batch with Megatron's tensor model parallelism (a cost model).

    Each layer is divided among ``depth`` workers.  A block all-reduces its activations twice in a
    forward and twice in a backward (Shoeybi et al., 2019, section 3), and so also twice when it is
    recomputed; nothing is computed meanwhile.  At the end the copies' gradients are all-reduced:
    they are ``depth`` workers apart, and those of a server share its link.
    """
    profile, cluster, ways = job.profile, job.cluster, job.depth
    compute = sum(x.forward_s + x.backward_s for x in job.timed.layers) / ways
    update = sum(x.update_s for x in profile.layers) / ways
    blocks = (x for x in profile.layers if x.name.endswith("Block"))
    activations = sum(all_reduce_bytes(6 * x.output_bytes, ways) for x in blocks)
    exchanged = activations / cluster.level_between(0, ways - 1).used_bandwidth
    gradients = 0.0
    if job.width > 1:
        sharing = min(ways, cluster.levels[0].width)
        each = all_reduce_bytes(profile.parameter_bytes / ways, job.width)
        gradients = sharing * each / cluster.level_between(0, ways).used_bandwidth
    return job.microbatches * (compute + exchanged) + gradients + update


def rates(jobs: Iterable[Pipelines], systems: Sequence[str] = SYSTEMS) -> pd.DataFrame:
    """Return sequences a second: a row a batch size, a column a system."""
    rows = {
        job.batch: {system: job.batch / simulated(job, system) for system in systems}
        for job in jobs
    }
    return pd.DataFrame(rows).T.rename_axis("batch")


def steady_seconds(trace: Trace, batches: int) -> float:
    """Return the mean seconds from the end of one batch to that of the next on the output stage."""
    if batches == 1:
        return trace.makespan_s
    last = int(trace.frame["stage"].max())
    microbatches = 1 + int(trace.frame["microbatch"].max())
    finished = trace.ends("BACKWARD", stage=last, group=microbatches // batches)
    return study.mean_interval(finished, 1, batches - 1)


def batch_seconds(job: Pipelines, counts: Sequence[int], longest: int) -> dict[int, float]:
    """Return 2BW's simulated seconds of a batch of so many microbatches, by their number.

    Beyond the ``longest``, which is even, a microbatch has the price of the last ones, since a full
    pipeline repeats itself.  It is not full as long as they cost less than the slowest stage
    computes, hidden behind sums of gradients over slow links: then twice as many are simulated.
    """
    stages = [job.timed.stage(stage.first, stage.stop) for stage in job.plan.stages]
    slowest_s = max(stage.forward_s + stage.backward_s for stage in stages)

    @cache
    def seconds(count: int) -> float:
        return simulated(replace(job, microbatches=count), TWO_BW)

    def price(count: int) -> float:
        return (seconds(count) - seconds(count // 2)) / (count - count // 2)

    full = min(longest, max(counts))
    while full < max(counts) and price(full) < FULL * slowest_s:
        full = min(2 * full, max(counts))
    return {
        count: seconds(count) if count <= full else seconds(full) + (count - full) * price(full)
        for count in counts
    }


def _seconds(job: Pipelines, system: str, run: Callable[[Schedule], Trace]) -> float:
    batches = BATCHES if system == TWO_BW else 1
    return steady_seconds(run(job.schedule(system, batches)), batches)
