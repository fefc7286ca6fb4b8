"""All parallel pipelines, by PipeDream-2BW's cost model written out for one at a time (section 4).

The planner (:mod:`pipekit.planning.sweep`) computes with arrays; this is a second opinion on it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from pipekit.clusters import Cluster
from pipekit.planning.sweep import block_balance
from pipekit.profiling import Profile


class Configuration(NamedTuple):
    """Parallel pipelines, and what they would take.

    Width w, depth d, rows of a microbatch b, whether everything but the stages' inputs is
    recomputed, microbatches of a pipeline in a batch m, seconds a microbatch, and bytes of the
    fullest worker.
    """

    width: int
    depth: int
    rows: int
    recompute: bool
    microbatches: int
    seconds: float
    bytes: float

    @property
    def throughput(self) -> float:
        """Rows a second of all pipelines."""
        return self.width * self.rows / self.seconds


def every_configuration(
    profiles: Mapping[int, Profile], cluster: Cluster, max_batch: int, optimizer_states: float
) -> Iterator[Configuration]:
    """Yield all that section 4 searches, by its cost model written out for one at a time.

    Profiles are by rows of the microbatch; a batch has ``max_batch`` rows at most; the optimizer
    keeps so many tensors of a parameter's size for each.
    """
    layers = len(next(iter(profiles.values())))
    for depth in range(1, min(cluster.workers, layers) + 1):
        balance = block_balance(profiles[min(profiles)], depth)
        for width in range(1, cluster.workers // depth + 1):
            for rows, profile in profiles.items():
                microbatches = max_batch // (width * rows)
                if rows > max_batch or microbatches < depth:
                    continue
                for recompute in (False, True):
                    seconds = _seconds(profile, balance, cluster, width, microbatches, recompute)
                    size = _bytes(profile, balance, width, optimizer_states, recompute)
                    yield Configuration(width, depth, rows, recompute, microbatches, seconds, size)


def _seconds(
    profile: Profile,
    balance: list[int],
    cluster: Cluster,
    width: int,
    microbatches: int,
    recompute: bool,
) -> float:
    """Return max over stages of max(compute + transfers, all-reduce / m)."""
    stops = list(accumulate(balance))
    passing = [
        _passing(cluster, width, stage, profile.boundary_bytes(stop))
        for stage, stop in enumerate(stops[:-1])
    ]
    slowest = 0.0
    for stage, (stop, length) in enumerate(zip(stops, balance, strict=True)):
        whole = profile.stage(stop - length, stop)
        busy = (1 + recompute) * whole.forward_s + whole.backward_s + whole.update_s / microbatches
        busy += passing[stage - 1] if stage else 0
        busy += passing[stage] if stage < len(passing) else 0
        reducing = 0.0
        if width > 1:
            level = cluster.level_between(stage * width, (stage + 1) * width - 1)
            reducing = 2 * (width - 1) / width * whole.parameter_bytes / level.used_bandwidth
        slowest = max(slowest, busy, reducing / microbatches)
    return slowest


def _passing(cluster: Cluster, width: int, stage: int, size: float) -> float:
    """Return the seconds in which every pipeline passes ``size`` bytes to its next stage."""
    busy: Counter[tuple[str, str, int]] = Counter()
    for replica in range(width):
        source = stage * width + replica
        level = cluster.level_between(source, source + width)
        for way, worker in (("out", source), ("in", source + width)):
            busy[level.name, way, cluster.member(worker, level)] += 1
    used = {level.name: level.used_bandwidth for level in cluster.levels}
    return max(count * size / used[name] for (name, _, _), count in busy.items())


def _bytes(
    profile: Profile, balance: list[int], width: int, optimizer_states: float, recompute: bool
) -> float:
    """Return the fullest worker's: versions, gradients, optimizer, buffers, activations."""
    stops, fullest = list(accumulate(balance)), 0.0
    for stage, (stop, length) in enumerate(zip(stops, balance, strict=True)):
        whole, in_flight = profile.stage(stop - length, stop), len(balance) - stage
        made = whole.saved_bytes + (0 if whole.saves_output else whole.output_bytes)
        # Parallel pipelines: of all stages but the last, two sums of gradients; there, one version.
        weights_and_sums = 2 + (2 if width > 1 and in_flight > 1 else 1)
        fullest = max(
            fullest,
            (weights_and_sums + optimizer_states) * whole.parameter_bytes
            + whole.buffer_bytes
            + in_flight * profile.boundary_bytes(stop - length)
            + (1 if recompute else in_flight) * made,
        )
    return fullest
