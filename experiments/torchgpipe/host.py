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

import pandas as pd

from experiments import study
from experiments.torchgpipe.cells import Benchmark, as_drawn
from pipekit.clusters import Cluster
from pipekit.profiling import Profile
from pipekit.simulation.costs import StageCosts, skips_of, stage_costs
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


class Host:
    """Issues kernels, and is never late: notes when :attr:`passes` and :attr:`copies` run."""

    def __init__(self, costs: Sequence[StageCosts], links: Cluster, has_streams: bool) -> None:
        self.costs, self.links, self.has_streams = costs, links, has_streams
        self.passes, self.copies = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        self._free: dict[tuple[str, int], float] = defaultdict(float)  # by stream: for what, whose
        self._ends: dict[Kernel, float] = {}
        # From which stage to which go how many bytes a microbatch; gradients go back.
        self._bytes: dict[tuple[int, int], float] = defaultdict(float)
        for stage, cost in enumerate(costs[:-1]):
            self._bytes[stage, stage + 1] += cost.whole.output_bytes
        for skip in skips_of(costs):
            self._bytes[skip.source, skip.destination] += skip.bytes

    def compute(self, op: str, stage: int, k: int) -> None:
        whole, purpose = self.costs[stage].whole, "activation"
        senders = [source for source, end in self._bytes if end == stage]
        seconds = whole.forward_s
        if op == BACKWARD:
            seconds, purpose = whole.backward_s, "gradient"
            senders = [end for source, end in self._bytes if source == stage]
        needs = [(purpose, sender, stage, k) for sender in senders]
        span = self._run((op, stage, k), seconds, [("compute", stage)], needs)
        self.passes.append((stage, stage, op, k, 0, *span, 0))

    def copy(self, purpose: str, stage: int, k: int) -> None:
        """Copy into a stage before its forward, or back from it after its backward."""
        for (source, end), size in self._bytes.items():
            if end == stage:
                made = FORWARD, source, k
                if purpose == "gradient":
                    source, end, made = end, source, (BACKWARD, stage, k)
                seconds = size / self.links.bandwidth(source, end)
                streams = [("out", source), ("in", end)]
                if not self.has_streams:  # both devices wait (section 3.1: two-way synchronization)
                    streams = [("compute", source), ("compute", end)]
                span = self._run((purpose, source, end, k), seconds, streams, [made])
                self.copies.append((source, end, purpose, source, k, *span, size))

    def _run(
        self, kernel: Kernel, seconds: float, streams: list[tuple[str, int]], needs: list[Any]
    ) -> tuple[float, float]:
        """Return when a kernel begins, as the first in its streams, and when it is over."""
        before = [self._ends[need] for need in needs if need in self._ends]
        start = max([self._free[stream] for stream in streams] + before)
        end = self._ends[kernel] = start + seconds
        self._free.update(dict.fromkeys(streams, end))
        return start, end


def simulated(
    cell: Benchmark,
    profile: Profile,
    links: Cluster,
    has: Components,
    balance: Sequence[int] | None = None,
) -> Trace:
    table = as_drawn(cell.stages, cell.microbatches)
    costs = stage_costs(table, carried(profile, has), cell.plan(balance))
    missing = [name for name, there in has._asdict().items() if not there]
    name = "without " + " and ".join(missing or ["nothing"])
    host = Host(costs, links, has.streams)
    for what, stage, k in issued(cell.stages, cell.microbatches - 1, has.order):
        if what == "activation":
            host.copy(what, stage, k)
        else:
            host.compute(what, stage, k)
        if what == BACKWARD:
            host.copy("gradient", stage, k)
    frame = pd.DataFrame(host.passes, columns=COLUMNS).sort_values(["worker", "start_s"])
    transfers = pd.DataFrame(host.copies, columns=TRANSFERS)
    return Trace(frame, "simulated", name, cell.stages, transfers=transfers)


def carried(profile: Profile, has: Components) -> Profile:
    """Return a profile; without portals its skips are part of what layers between hand on."""
    if has.portals:
        return profile
    layers = tuple(
        replace(
            layer,
            output_bytes=layer.output_bytes
            + sum(skip.bytes for skip in profile.skips if skip.source <= n < skip.destination),
        )
        for n, layer in enumerate(profile.layers)
    )
    return replace(profile, layers=layers, skips=())


def in_order(trace: Trace, microbatches: int) -> bool:
    """Return whether each device goes backward from the last microbatch, recomputing it before."""
    last = microbatches - 1
    pairs = [[(RECOMPUTE, k), (BACKWARD, k)] for k in reversed(range(last))]
    expected = [(BACKWARD, last), *(each for pair in pairs for each in pair)]
    behind = trace.frame[trace.frame["op"] != FORWARD].sort_values("start_s")
    return all(
        list(zip(own["op"], own["microbatch"], strict=True)) == expected
        for _, own in behind.groupby("worker")
    )


def copies_of(trace: Trace) -> pd.DataFrame:
    assert trace.transfers is not None
    return trace.transfers


def overlap(trace: Trace) -> float:
    """Return the share of the copies' time in which a device at their ends computes."""
    return study.hidden_share(trace.frame, copies_of(trace))
