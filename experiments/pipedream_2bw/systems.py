"""The systems of Figure 6 as schedules: their workers' bytes (3.1, 5.2, 5.3) and speed (5.2, 5.4).

One memory model for all, by the paper's formulas (3.1) and the authors' code (profiles.py): 20
bytes a parameter and 4 more for each further weight version, 2 a number of activations.  Each
microbatch in flight keeps the stage's input and what the stage has returned (schedules.py,
input_tensors and output_tensors): on the last one the loss's probabilities.  What a stage has sent
waits at the next one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import ceil

import numpy as np
import pandas as pd

from experiments import study
from experiments.pipedream_2bw.profiles import (
    FIGURE6,
    LOSS_BYTES,
    PARAMETER_BYTES,
    VERSION_BYTES,
    WEIGHT_BYTES,
    ProfileOf,
    gpt_profile,
)
from pipekit.clusters import Cluster, two_bw_v100
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.planning.layer_ranges import Floats, LayerRanges
from pipekit.planning.sweep import block_balance
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, check, flush, gpipe, replicate, two_bw
from pipekit.schedules.check import Report
from pipekit.schedules.methods.flushed import flushed
from pipekit.simulation import simulate
from pipekit.traces import Trace

TENSOR_MP, INTER_LAYER, GPIPE, FLUSH, TWO_BW = SYSTEMS = (
    "tensor MP",
    "inter-layer MP",
    "GPipe",
    "PipeDream-Flush",
    "PipeDream-2BW",
)
BATCHES = 3  # of a table whose memory is counted: from the third on 2BW has both its versions
GIB = 2**30  # bytes of a "GB" of a V100's 16 (pipekit.clusters.papers)


def in_flushes(stages: int, sizes: Sequence[int]) -> Schedule:
    """Return GPipe's schedule with several flushes a batch, of so many microbatches each."""
    parts = [range(stop - size, stop) for stop, size in zip(accumulate(sizes), sizes, strict=True)]
    order = [(op, k) for part in parts for op in (Op.FORWARD, Op.BACKWARD) for k in part]
    workers = ([(op, stage, k) for op, k in order] for stage in range(stages))
    return flushed(INTER_LAYER if max(sizes) == 1 else GPIPE, workers)


TABLES: Mapping[str, Callable[[int, int], Schedule]] = {
    INTER_LAYER: lambda depth, microbatches: in_flushes(depth, [1] * microbatches),
    FLUSH: flush,
    TWO_BW: two_bw,
    GPIPE: gpipe,
}
"""The pipelined systems, each from depth and microbatches to its schedule; in the order of section
5.3, from the least memory to the most.  GPipe has a single flush a batch."""


@dataclass(frozen=True)
class Pipelines:
    """A model on parallel pipelines: what a bar of Figure 6 runs."""

    profile: Profile  # of one microbatch
    cluster: Cluster
    depth: int  # stages of a pipeline, d, or ways of tensor model parallelism
    microbatches: int  # of one pipeline in a batch, m

    @property
    def width(self) -> int:
        """Parallel pipelines, w, on all workers; data-parallel copies of tensor parallelism."""
        return self.cluster.workers // self.depth

    @property
    def batch(self) -> int:
        return self.profile.rows * self.width * self.microbatches

    @property
    def balance(self) -> list[int]:
        """Layers of each stage: equal numbers of blocks (section 3.3)."""
        return block_balance(self.profile, self.depth)

    @property
    def plan(self) -> Plan:
        """The stages as simulator and emulator take them; :attr:`timed` has the recomputation."""
        replicas = [self.width] * self.depth
        return Plan.by_hand(self.balance, rows=self.profile.rows, replicas=replicas)

    @property
    def timed(self) -> Profile:
        """The costs of microbatches "recomputed when required" (4.1): as a backward begins."""
        return study.recomputed_late(self.profile)

    def schedule(self, system: str, batches: int) -> Schedule:
        """Return the table of one of the pipelined systems, or of inter-layer model parallelism."""
        if system == GPIPE:
            schedule = in_flushes(self.depth, self.flushes())
        else:
            schedule = TABLES[system](self.depth, self.microbatches)
        return replicate(schedule.take(batches), self.width)

    def flushes(self) -> list[int]:
        """Return the microbatches of each of GPipe's flushes: as few flushes as fit, as equal."""
        count = ceil(self.microbatches / min(self.microbatches, self.admitted()))
        parts = np.array_split(np.arange(self.microbatches), count)
        return [len(part) for part in parts]

    def admitted(self) -> int:
        """Return how many microbatches GPipe's memory admits before the first goes backward."""

        def fits(microbatches: int) -> bool:
            needed = replace(self, microbatches=microbatches).held(GPIPE)
            return bool(GIB * needed.max() <= self.cluster.device.memory_bytes)

        return max(1, study.largest_that_fits(fits, self.microbatches))

    def held(self, system: str, recompute: bool = True) -> Floats:
        """Return a worker's GB on each stage, with all blocks recomputed, or nothing (3.1)."""
        return self.held_by(_counted(system, self.depth, self.microbatches), recompute)

    def held_by(self, report: Report, recompute: bool = True) -> Floats:
        """Return the same for any table: the microbatches in flight and versions of its report."""
        stop, in_flight = np.cumsum(self.balance), np.array(report.peak_in_flight)
        start, spans = stop - self.balance, LayerRanges(self.profile)
        a_parameter = PARAMETER_BYTES + VERSION_BYTES * (np.array(report.peak_versions) - 1)
        kept = 1 if recompute else None
        total = spans.worker_bytes(
            start, stop, a_parameter / WEIGHT_BYTES, in_flight, kept, np.zeros(())
        )
        sent = spans.boundary_bytes[stop[:-1]]
        if recompute:
            probabilities = LOSS_BYTES / WEIGHT_BYTES * self.profile.layers[-1].output_bytes
            total += (in_flight - 1) * [*sent, probabilities]
        total[1:] += (in_flight[:-1] - in_flight[1:]) * sent  # has arrived, and waits
        return total / GIB


@cache
def _counted(system: str, depth: int, microbatches: int) -> Report:
    return check(TABLES[system](depth, microbatches).take(BATCHES))


# Causes of misses, by the names that claims share in the report, and what is done instead.
NETWORK = "a network of 25 Gbps, which the paper does not print", "100 Gbps between servers"
MEMORY = "all of a device's memory is the program's", "2 GiB of it are the system's"


def on_p3dn(servers: int = 8) -> Cluster:
    return two_bw_v100(servers).calibrated("network", 100e9 / 8, "p3dn.24xlarge, of 8 V100s, too")


def beside_the_system(servers: int = 8) -> Cluster:
    """Return the servers without 2 GiB of each GPU: CUDA's context, workspaces, fragments.

    No source says how many: these are enough to change what the planner chooses, 1 GiB is not.
    """
    cluster = two_bw_v100(servers)
    memory_bytes = cluster.device.memory_bytes - 2 * GIB
    return replace(cluster, device=replace(cluster.device, memory_bytes=memory_bytes))


def panel(
    letter: str, profile_of: ProfileOf = gpt_profile, made: Callable[[int], Cluster] = two_bw_v100
) -> dict[int, Pipelines]:
    """Return what a panel of Figure 6 runs, by global batch, on a cluster made of its servers."""
    model, servers, depth, batches = FIGURE6[letter]
    cluster = made(servers)
    rows = batches[0] // cluster.workers  # w d, as the smaller batch has m = d
    counts = {batch: batch * depth // (cluster.workers * rows) for batch in batches}
    profile = profile_of(model, rows)
    return {batch: Pipelines(profile, cluster, depth, m) for batch, m in counts.items()}


TIMED_BATCHES = 4  # without flushes: the first fills, and the second may wait for no sum
FULL = 0.99  # of the slowest stage's seconds that a microbatch more costs in a full pipeline


def simulated(job: Pipelines, system: str) -> float:
    if system == TENSOR_MP:
        return tensor_mp_seconds(job)
    return _seconds(job, system, lambda table: simulate(table, job.timed, job.plan, job.cluster))


def emulated(job: Pipelines, system: str, faster: float, pace: float = 1) -> float:
    """Return a batch's seconds on the real engine, as if compute and links were not sped up."""
    how = job.timed, job.plan, job.cluster, faster * pace
    return _seconds(job, system, lambda table: study.emulate_at_pace(table, *how).trace)


def tensor_mp_seconds(job: Pipelines) -> float:
    """Return the seconds of a batch with Megatron's tensor model parallelism (a cost model).

    A block all-reduces its activations twice in a forward, in a backward (Shoeybi et al., 2019,
    section 3) and in a recomputation; nothing is computed meanwhile.  At the end the copies'
    gradients are all-reduced: they are ``depth`` workers apart, and a server's share its link.
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


def rates(jobs: Iterable[Pipelines]) -> pd.DataFrame:
    """Return sequences a second: a row a batch size, a column a system."""
    rows = {job.batch: {each: job.batch / simulated(job, each) for each in SYSTEMS} for job in jobs}
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

    Beyond the ``longest``, which is even, a microbatch has the price of the last ones, unless the
    pipeline is not full: then twice as many are simulated.
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
    batches = TIMED_BATCHES if system == TWO_BW else 1
    return steady_seconds(run(job.schedule(system, batches)), batches)
