"""torchgpipe's Tables 2 and 4: throughput of AmoebaNet-D and of U-Net (sections 4.2.1, 4.2.3).

Nothing is fitted: costs are estimated for the P40, and partitions and batch sizes are the
repository's.
"""

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from experiments.study.costs import emulate_at_pace, published, recomputed_late
from experiments.study.rounds import emulated
from experiments.study.traces import memory_of
from experiments.torchgpipe.as_drawn import as_drawn
from experiments.torchgpipe.settings import Benchmark
from pipekit.clusters import P40, Cluster, torchgpipe_p40
from pipekit.planning import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate
from pipekit.traces import Trace

AT_ONCE = 4
"""Emulations beside one another: nearly all that they do is wait."""


@cache
def profile_of(network: str, rows: int) -> Profile:
    """Return what a microbatch of so many rows of a network costs on the P40 (simulated)."""
    return published(network, rows, P40)


def blocks(profile: Profile, stages: int) -> list[int]:
    """Return the partition of torchgpipe's own algorithm, by time (section 3)."""
    seconds = [layer.forward_s + layer.backward_s for layer in profile.layers]
    return balance(seconds, stages, "block")


class Throughput(NamedTuple):
    """Rows a second of a benchmark."""

    simulated: float  # with the published partition
    emulated: float  # likewise; simulated where no emulation counts
    blocks: float  # simulated, with the partition by :func:`blocks`
    peak_bytes: int  # most bytes on a device, simulated with the published partition
    label: str = "emulated"  # of ``emulated``

    @property
    def unrun(self) -> "Throughput":
        """The same as if nothing had been emulated."""
        return self._replace(emulated=self.simulated, label="simulated")


def throughput(
    cell: Benchmark, profile: Profile, faster: float, emulations: int
) -> list[Throughput]:
    """Simulate and emulate a batch of a benchmark on P40s, the latter ``faster`` times as fast.

    The profile is for any rows; each round of emulations gives one result.
    """
    cluster = torchgpipe_p40(cell.stages)
    trace = simulated(cell, profile, cluster)
    own = simulated(cell, profile, cluster, blocks(profile, cell.stages))
    timed = emulated(
        lambda pace: emulated_s(cell, profile, cluster, faster * pace), trace.makespan_s, emulations
    )
    return [
        Throughput(
            cell.batch / trace.makespan_s,
            cell.batch / timed.only(number).seconds,
            cell.batch / own.makespan_s,
            max(memory_of(trace).peak_bytes),
            timed.label,
        )
        for number in range(emulations)
    ]


def simulated(
    cell: Benchmark, profile: Profile, cluster: Cluster | None, balance: Sequence[int] | None = None
) -> Trace:
    """Return a simulated batch of a benchmark; without a cluster links cost nothing.

    The profile is for any rows; by default the published ``balance`` counts.
    """
    table = as_drawn(cell.stages, cell.microbatches)
    return simulate(table, profile, cell.plan(balance), cluster)


def recomputed_late_speedup(cell: Benchmark, over: Benchmark, profile: Profile) -> float:
    """Return a speedup of cells that recompute everything, if they did so with the gradient there.

    By itself a stage recomputes while it waits for its gradient, all but the last one (simulated).
    """
    costs = recomputed_late(profile)

    def rate(each: Benchmark) -> float:
        kept, cluster = replace(each, recompute="never"), torchgpipe_p40(each.stages)
        return each.batch / simulated(kept, costs, cluster).makespan_s

    return rate(cell) / rate(over)


def emulated_s(cell: Benchmark, profile: Profile, cluster: Cluster, faster: float) -> float:
    """Return the seconds of a batch on the engine, run in time ``faster`` times as fast."""
    table = as_drawn(cell.stages, cell.microbatches)
    return emulate_at_pace(table, profile, cell.plan(), cluster, faster).trace.makespan_s


def least_rows(cells: Sequence[Benchmark]) -> dict[str, int]:
    """Return the rows of each network's smallest microbatch."""
    return {cell.network: cell.rows for cell in sorted(cells, key=lambda cell: -cell.rows)}


def throughputs(
    cells: Sequence[Benchmark], faster: float, emulations: int
) -> list[dict[Benchmark, Throughput]]:
    """Return the throughput of each cell in every round; :data:`AT_ONCE` emulations run at once.

    Costs are those of the network's smallest microbatch, taken to be proportional to the rows.
    """
    profiles = {network: profile_of(network, rows) for network, rows in least_rows(cells).items()}
    longest_first = sorted(cells, key=lambda cell: cell.batch / cell.stages, reverse=True)

    def run(cell: Benchmark) -> list[Throughput]:
        return throughput(cell, profiles[cell.network], faster, emulations)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        rounds = zip(*pool.map(run, longest_first), strict=True)
        return [dict(zip(longest_first, found, strict=True)) for found in rounds]


def slot(cell: Benchmark, speedup: float) -> float:
    """Return the seconds of a row in a slot, in units of the table's baseline, were all slots
    alike: a batch of m microbatches takes m + n - 1 of them.

    Stages that are not alike, recomputation done while waiting, and the last microbatch, which is
    not recomputed, make a batch shorter than as many of its longest slots; the more so, the fewer
    microbatches it has.
    """
    return cell.microbatches / (speedup * (cell.microbatches + cell.stages - 1))


def grows(speedups: Mapping[tuple[int, int], float]) -> bool:
    """Return whether Table 2's speedups, by (m, n), grow with m, and from m = 4 on with n."""
    ms, ns = (sorted({key[place] for key in speedups}) for place in (0, 1))
    with_m = all(speedups[a, n] < speedups[b, n] for n in ns for a, b in pairwise(ms))
    with_n = all(speedups[m, a] < speedups[m, b] for m in ms if m >= 4 for a, b in pairwise(ns))
    return with_m and with_n


def within_the_costliest_layer(sequences: int, seed: int = 0) -> bool:
    """Return whether stages of block partitions differ by no more than the costliest layer.

    There are so many random ``sequences`` of positive costs, of very different sizes in one half of
    them.
    """
    draw = random.Random(seed)
    for number in range(sequences):
        layers = draw.randint(1, 60)
        costs = [draw.random() if number % 2 else draw.lognormvariate(0, 2) for _ in range(layers)]
        ends = iter(costs)
        stages = balance(costs, draw.randint(1, layers), "block")
        sums = [sum(next(ends) for _ in range(count)) for count in stages]
        # The algorithm is exact; these sums are rounded.
        if max(sums) - min(sums) > max(costs) * (1 + 1e-9):
            return False
    return True


def closed_form(microbatches: int) -> float:
    """Return one device's throughput over that without recomputation, in slots of 1 and 2.

    3 / (3 + (m - 1) / m), since all microbatches but the last are recomputed (section 2.1).
    """

    def seconds(recompute: Recompute) -> float:
        plan = Plan.by_hand([1], recompute=recompute)
        return simulate(as_drawn(1, microbatches), Profile.uniform(1), plan).makespan_s

    return seconds("never") / seconds("except_last")
