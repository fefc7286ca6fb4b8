"""Figure 6 of PipeDream-2BW: sequences a second of each system (section 5.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from experiments.pipedream_2bw.profiles import ProfileOf, gpt_profile
from experiments.pipedream_2bw.settings import Panel
from experiments.pipedream_2bw.systems import SYSTEMS, TENSOR_MP, TWO_BW, Pipelines
from experiments.study.costs import emulate_at_pace
from experiments.study.traces import mean_interval
from pipekit.clusters.papers import two_bw_v100
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.simulation import simulate
from pipekit.traces import Trace

BATCHES = 4
"""Batches of a run without flushes: the first fills the pipeline, and of several pipelines the
second waits for no sum of gradients."""


def job(panel: Panel, batch: int, profile_of: ProfileOf = gpt_profile) -> Pipelines:
    """Return what a panel runs for one of its batch sizes (sequences)."""
    rows = panel.microbatch_rows
    profile = profile_of(panel.model, rows)
    return Pipelines(
        profile, panel.cluster, panel.depth, panel.width, batch // (panel.width * rows)
    )


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
    level = cluster.level_between(0, ways - 1)
    exchanged = activations / level.used_bandwidth
    gradients = 0.0
    if job.width > 1:
        level = cluster.level_between(0, ways)
        sharing = min(ways, cluster.levels[0].width)
        each = all_reduce_bytes(profile.parameter_bytes / ways, job.width)
        gradients = sharing * each / level.used_bandwidth
    return job.microbatches * (compute + exchanged) + gradients + update


def simulated(job: Pipelines, system: str) -> float:
    """Return the simulated seconds of a batch in steady state."""
    if system == TENSOR_MP:
        return tensor_mp_seconds(job)
    batches = _batches(system)
    table = job.schedule(system, batches)
    return batch_seconds(simulate(table, job.timed, job.plan, job.cluster), batches)


def recomputed_early(job: Pipelines, system: str) -> float:
    """Return the same if a stage recomputes while it waits for its gradient (torchgpipe, 3.2.4)."""
    stages = tuple(replace(stage, recompute="always") for stage in job.plan.stages)
    plan, batches = replace(job.plan, stages=stages), _batches(system)
    trace = simulate(job.schedule(system, batches), job.profile, plan, job.cluster)
    return batch_seconds(trace, batches)


def emulated(job: Pipelines, system: str, faster: float) -> float:
    """Return a batch's seconds on the real engine, as if compute and links were not sped up."""
    batches = _batches(system)
    table = job.schedule(system, batches)
    run = emulate_at_pace(table, job.timed, job.plan, job.cluster, faster)
    return batch_seconds(run.trace, batches)


def rates(jobs: Iterable[Pipelines], systems: Sequence[str]) -> pd.DataFrame:
    """Return the simulated sequences a second: a row a batch size, a column a system."""
    rows = {
        each.batch: {system: each.batch / simulated(each, system) for system in systems}
        for each in jobs
    }
    return pd.DataFrame(rows).T.rename_axis("batch")


def panel_rates(panel: Panel, profile_of: ProfileOf) -> pd.DataFrame:
    """Return :func:`rates` of all systems for a panel with another network."""
    return rates((job(panel, batch, profile_of) for batch in panel.batches), SYSTEMS)


def on_links(job: Pipelines, level: str, bandwidth: float) -> Pipelines:
    """Return the same with another bandwidth (bytes/s) for a level of the cluster."""
    return replace(job, cluster=job.cluster.calibrated(level, bandwidth, "as supposed"))


def tensor_mp_rate(size: str, ways: int, batch: int, rows: int) -> float:
    """Return sequences a second of tensor model parallelism in so many ways on the 64 GPUs."""
    cluster = two_bw_v100()
    width = cluster.workers // ways
    divided = Pipelines(gpt_profile(size, rows), cluster, ways, width, batch // (width * rows))
    return batch / tensor_mp_seconds(divided)


def batch_seconds(trace: Trace, batches: int) -> float:
    """Return the seconds from the end of one batch to that of the next, the mean over a run.

    The output stage has one microbatch in flight, so that it neither drains nor catches up.  A run
    of a single batch, which ends in a flush, takes what it takes.
    """
    if batches == 1:
        return trace.makespan_s
    last = int(trace.frame["stage"].max())
    microbatches = 1 + int(trace.frame["microbatch"].max())
    return mean_interval(
        trace.ends("BACKWARD", stage=last, group=microbatches // batches), 1, batches - 1
    )


def _batches(system: str) -> int:
    return BATCHES if system == TWO_BW else 1
