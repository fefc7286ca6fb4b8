"""A batch as torchgpipe's host issues it, with some of its components (sections 3.2, 3.3, 4.1).

One host issues everything (3.2.1), and each stream of a device runs its kernels one by one.
Simulated only.  The clock of pipekit's replays cannot serve here: a kernel may hold up several
streams at once, where a task there holds up one worker.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.study.costs import with_costs
from experiments.torchgpipe.cells import Benchmark, as_drawn
from pipekit.clusters import Cluster
from pipekit.profiling import Profile
from pipekit.simulation.costs import skips_of, stage_costs
from pipekit.traces import COLUMNS, RECOMPUTE, TRANSFERS, Trace

FORWARD, BACKWARD = "FORWARD", "BACKWARD"


class Components(NamedTuple):
    """Which components are there (section 3.2.2, 3.2.3, 3.3)."""

    order: bool  # of backwards, by Fork and Join
    streams: bool  # for copies alone; without them copies hold up the computing of both devices
    portals: bool  # for skip connections; without them, each stage hands them to the next


ROWS: Mapping[str, Components] = {
    "baseline": Components(order=False, streams=False, portals=False),
    "dep": Components(order=True, streams=False, portals=False),
    "dep-streams": Components(order=True, streams=True, portals=False),
    "dep-streams-portals": Components(order=True, streams=True, portals=True),
}
"""Table 1, by what the ledger calls its rows."""

Kernel = tuple[str, int, int] | tuple[str, int, int, int]
"""A pass ("FORWARD", stage, microbatch), or a copy ("activation", from, to, microbatch)."""


def issued(stages: int, last: int, in_order: bool) -> Iterator[tuple[str, int, int]]:
    """Yield a batch's copies to forwards and its passes as they are issued, each (what, stage, k).

    Forwards come in clock cycles (Algorithm 1), backwards in their mirror image.  Without order,
    autograd goes by the numbers of its nodes (:mod:`.autograd_nodes`): a device recomputes every
    microbatch as soon as its gradient is there, and goes backward only when it has all.
    """
    times = range(last + stages)
    cycles = [[(s, t - s) for s in range(stages) if 0 <= t - s <= last] for t in times]
    for cycle, what in product(cycles, ("activation", FORWARD)):
        yield from ((what, stage, k) for stage, k in cycle)
    if in_order:
        for stage, k in chain.from_iterable(reversed(cycles)):
            if k < last:
                yield RECOMPUTE, stage, k
            yield BACKWARD, stage, k
        return
    behind, others = range(stages)[::-1], range(last)[::-1]
    # The loss gives the last device all its gradients at once, the others get them one by one.
    yield from ((RECOMPUTE, stages - 1, k) for k in others)
    yield from ((BACKWARD, stage, last) for stage in behind)
    for stage, k in product(behind, others):
        yield BACKWARD, stage, k
        if stage:
            yield RECOMPUTE, stage - 1, k


def simulated(
    cell: Benchmark,
    profile: Profile,
    links: Cluster,
    has: Components,
    balance: Sequence[int] | None = None,
) -> Trace:
    """Return when a batch's passes and copies run, as a host issues them that is never late."""
    table = as_drawn(cell.stages, cell.microbatches)
    costs = stage_costs(table, carried(profile, has), cell.plan(balance))
    sizes: dict[tuple[int, int], float] = defaultdict(float)  # a microbatch's, by stages
    for stage, cost in enumerate(costs[:-1]):
        sizes[stage, stage + 1] += cost.whole.output_bytes
    for skip in skips_of(costs):
        sizes[skip.source, skip.destination] += skip.bytes
    passes, copies = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    free: dict[tuple[str, int], float] = defaultdict(float)  # by stream: for what, whose
    ends: dict[Kernel, float] = {}

    def run(kernel: Kernel, seconds: float, streams: list[Any], needs: list[Any]) -> Any:
        """Return when a kernel begins, as the first in its streams, and when it is over."""
        before = [ends[need] for need in needs if need in ends]
        start = max([free[stream] for stream in streams] + before)
        end = ends[kernel] = start + seconds
        free.update(dict.fromkeys(streams, end))
        return start, end

    def copy(purpose: str, source: int, to: int, k: int, size: float, made: Kernel) -> None:
        streams = [("out", source), ("in", to)]
        if not has.streams:  # both devices wait (section 3.1: two-way synchronization)
            streams = [("compute", source), ("compute", to)]
        seconds = size / links.bandwidth(source, to)
        span = run((purpose, source, to, k), seconds, streams, [made])
        copies.append((source, to, purpose, source, k, *span, size))

    for what, stage, k in issued(cell.stages, cell.microbatches - 1, has.order):
        before = {source: size for (source, to), size in sizes.items() if to == stage}
        if what == "activation":
            for source, size in before.items():
                copy(what, source, stage, k, size, (FORWARD, source, k))
            continue
        seconds = costs[stage].whole.forward_s
        needs = [("activation", source, stage, k) for source in before]
        if what == BACKWARD:
            seconds = costs[stage].whole.backward_s
            needs = [("gradient", to, stage, k) for source, to in sizes if source == stage]
        span = run((what, stage, k), seconds, [("compute", stage)], needs)
        passes.append((stage, stage, what, k, 0, *span, 0))
        if what == BACKWARD:
            for source, size in before.items():
                copy("gradient", stage, source, k, size, (what, stage, k))
    missing = [name for name, there in has._asdict().items() if not there]
    name = "without " + " and ".join(missing or ["nothing"])
    frame = pd.DataFrame(passes, columns=COLUMNS).sort_values(["worker", "start_s"])
    transfers = pd.DataFrame(copies, columns=TRANSFERS)
    return Trace(frame, "simulated", name, cell.stages, transfers=transfers)


def carried(profile: Profile, has: Components) -> Profile:
    """Return a profile; without portals its skips are part of what layers between hand on."""
    if has.portals:
        return profile
    output_bytes = np.array([layer.output_bytes for layer in profile.layers], dtype=float)
    for skip in profile.skips:
        output_bytes[skip.source : skip.destination] += skip.bytes
    return with_costs(replace(profile, skips=()), output_bytes=output_bytes)
