"""Cells of torchgpipe's tables on P40s, simulated and emulated (section 4).

Nothing is fitted: costs are estimated for the P40, and partitions and batch sizes are the
repository's.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torch import nn

from experiments import study
from experiments.study.claims import Emulated
from experiments.torchgpipe.settings import TABLE4, Benchmark, printed_cell
from pipekit.clusters import P40, Cluster, torchgpipe_p40
from pipekit.engine import Execution, Pipeline
from pipekit.planning import balance
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule
from pipekit.simulation import simulate
from pipekit.traces import Trace

# Causes of misses, by the names that claims share in the report.
P40S_CUT = "the published partition, balanced for the real P40 and not for our costs"
P40S_SHARE = "the share of its peak that a P40 attains"

AT_ONCE = 4
"""Emulations beside one another: nearly all that they do is wait."""


def as_drawn(stages: int, microbatches: int) -> Schedule:
    """Return a batch of GPipe's schedule with backwards from the last microbatch to the first."""

    batch = range(microbatches)
    order = [(Op.FORWARD, k) for k in batch] + [(Op.BACKWARD, k) for k in reversed(batch)]
    workers = ([(op, stage, k) for op, k in order] for stage in range(stages))
    return Schedule.one_batch("GPipe as drawn", workers)


def pipeline(
    model: nn.Sequential,
    stages: int,
    microbatches: int,
    recompute: Recompute | None = None,
    **how: Any,
) -> Pipeline:
    """Return a pipeline of m microbatches on n CPU workers; ``how`` are its further arguments."""
    schedule = as_drawn(stages, microbatches).repeat()
    execution = Execution(devices=["cpu"] * stages, recompute=recompute)
    return Pipeline(model, schedule, execution=execution, **how)


def profiles_of(cells: Sequence[Benchmark]) -> dict[str, Profile]:
    """Return what the smallest microbatch of each network costs on the P40 (simulated)."""
    rows = {cell.network: cell.rows for cell in sorted(cells, key=lambda cell: -cell.rows)}
    return {network: study.published(network, least, P40) for network, least in rows.items()}


def blocks(profile: Profile, stages: int) -> list[int]:
    """Return the partition of torchgpipe's algorithm, by time (section 3)."""
    seconds = [layer.forward_s + layer.backward_s for layer in profile.layers]
    return balance(seconds, stages, "block")


def simulated(
    cell: Benchmark, profile: Profile, cluster: Cluster | None, balance: Sequence[int] | None = None
) -> Trace:
    """Return a simulated batch of a benchmark; without a cluster links cost nothing."""
    table = as_drawn(cell.stages, cell.microbatches)
    return simulate(table, profile, cell.plan(balance), cluster)


def faster_than_printed() -> float:
    """Return how many times as fast as Table 4 prints our P40 is at naive-1, without a pipeline."""
    naive, cluster = TABLE4[0], torchgpipe_p40(1)
    seconds = simulated(naive, profiles_of(TABLE4)[naive.network], cluster).makespan_s
    printed = printed_cell(4, f"{naive.name}-throughput")
    assert printed is not None
    return naive.batch / seconds / printed


def recomputed_late_speedup(cell: Benchmark, over: Benchmark, profile: Profile) -> float:
    """Return a speedup of cells that recompute everything, once the gradient is there."""
    costs = study.recomputed_late(profile)

    def rate(each: Benchmark) -> float:
        kept, cluster = replace(each, recompute="never"), torchgpipe_p40(each.stages)
        return each.batch / simulated(kept, costs, cluster).makespan_s

    return rate(cell) / rate(over)


def emulated(
    cells: Sequence[Benchmark], faster: float, emulations: int
) -> study.Rounds[dict[Benchmark, Emulated]]:
    """Return the seconds of each cell's batch in every round of emulations, and simulated."""
    profiles = profiles_of(cells)

    def time(cell: Benchmark) -> Emulated:
        profile, cluster = profiles[cell.network], torchgpipe_p40(cell.stages)
        table = as_drawn(cell.stages, cell.microbatches)

        def seconds(pace: float) -> float:
            how = profile, cell.plan(), cluster, faster * pace
            return study.emulate_at_pace(table, *how).trace.makespan_s

        return study.emulated(seconds, simulated(cell, profile, cluster).makespan_s, emulations)

    longest_first = sorted(cells, key=lambda cell: cell.batch / cell.stages, reverse=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(longest_first, pool.map(time, longest_first), strict=True))
    rounds = ({cell: found[cell].only(n) for cell in cells} for n in range(emulations))
    return study.Rounds(tuple(rounds), {cell: found[cell].unrun for cell in cells})
