"""A batch as torchgpipe's host issues it, with some of its components (sections 3.2, 3.3, 4.1).

pipekit's engine issues from each worker what that worker does, and copies beside the computing.
Here one host issues everything (section 3.2.1), and each stream of a device runs its kernels one by
one, so that copies can be issued to the streams that compute (section 3.2.3), and backwards in
another order (section 3.2.2).  Simulated only.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from experiments import study
from experiments.torchgpipe.cells import as_drawn
from experiments.torchgpipe.settings import Benchmark
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

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that are not there, as :class:`pipekit.PipelinedModule` calls them."""
        return tuple(name for name, there in self._asdict().items() if not there)


ROWS: Mapping[str, Components] = MappingProxyType(
    {
        "baseline": Components(order=False, streams=False, portals=False),
        "dep": Components(order=True, streams=False, portals=False),
        "dep-streams": Components(order=True, streams=True, portals=False),
        "dep-streams-portals": Components(order=True, streams=True, portals=True),
    }
)
"""Table 1, by what the ledger calls its rows."""

Stream = tuple[str, int]
"""What it is for, and whose: ("compute", device)."""


class Pass(NamedTuple):
    """A kernel that computes: op is FORWARD, RECOMPUTE or BACKWARD."""

    op: str
    stage: int
    microbatch: int


class Copy(NamedTuple):
    """A kernel that copies from device to device: purpose is "activation" or "gradient"."""

    purpose: str
    source: int
    destination: int
    microbatch: int


class Issue(NamedTuple):
    """A kernel as the host issues it: it begins as the first in each of its streams."""

    kernel: Pass | Copy
    seconds: float
    streams: tuple[Stream, ...]
    needs: tuple[Pass | Copy, ...] = ()  # these must be over, if they were issued
    size: float = 0.0  # bytes that a copy moves


def run(issues: Iterable[Issue], name: str, devices: int) -> Trace:
    """Return when every kernel runs; the host is never late, and each device has a stage."""
    free: dict[Stream, float] = defaultdict(float)
    ends: dict[Pass | Copy, float] = {}
    passes, copies = [], []
    for kernel, seconds, streams, needs, size in issues:
        earliest = [free[stream] for stream in streams]
        start = max(earliest + [ends[before] for before in needs if before in ends])
        end = ends[kernel] = start + seconds
        free.update(dict.fromkeys(streams, end))
        if isinstance(kernel, Pass):
            op, stage, microbatch = kernel
            passes.append((stage, stage, op, microbatch, 0, start, end, 0))
        else:
            purpose, source, destination, microbatch = kernel
            copies.append((source, destination, purpose, source, microbatch, start, end, size))
    frame = pd.DataFrame(passes, columns=COLUMNS).sort_values(["worker", "start_s"])
    transfers = pd.DataFrame(copies, columns=TRANSFERS)
    return Trace(frame, "simulated", name, devices, transfers=transfers)


@dataclass(frozen=True)
class Host:
    """Issues a batch: forwards in clock cycles (Algorithm 1), backwards in their mirror image.

    Without order, autograd goes by the numbers of its nodes (:mod:`.autograd_nodes`): a device
    recomputes every microbatch as soon as its gradient is there, and goes backward through none of
    them before it has all.
    """

    costs: Sequence[StageCosts]  # of each stage; their skips decide what is copied where
    microbatches: int  # m; all but the last are recomputed
    links: Cluster
    has: Components

    @cached_property
    def _ways(self) -> list[tuple[int, int, float]]:
        """From which stage to which go how many bytes a microbatch; gradients go back."""
        sizes: dict[tuple[int, int], float] = defaultdict(float)
        for stage, cost in enumerate(self.costs[:-1]):
            sizes[stage, stage + 1] += cost.whole.output_bytes
        for skip in skips_of(self.costs):
            sizes[skip.source, skip.destination] += skip.bytes
        return [(*ends, size) for ends, size in sizes.items()]

    def issues(self) -> Iterator[Issue]:
        """Yield everything in the order of issue."""
        for cycle in self._cycles():
            for stage, k in cycle:
                yield from self._copies("activation", stage, k)
            for stage, k in cycle:
                yield self._pass(FORWARD, stage, k)
        for op, stage, k in self._ordered() if self.has.order else self._unordered():
            yield self._pass(op, stage, k)
            if op == BACKWARD:
                yield from self._copies("gradient", stage, k)

    def _cycles(self) -> list[list[tuple[int, int]]]:
        """Return (stage, microbatch) of each clock cycle."""
        m, n = self.microbatches, len(self.costs)
        return [[(s, t - s) for s in range(n) if 0 <= t - s < m] for t in range(m + n - 1)]

    def _ordered(self) -> Iterator[Pass]:
        for cycle in reversed(self._cycles()):
            for stage, k in cycle:
                if k < self.microbatches - 1:
                    yield Pass(RECOMPUTE, stage, k)
                yield Pass(BACKWARD, stage, k)

    def _unordered(self) -> Iterator[Pass]:
        """Yield the passes as they are issued when nothing but data binds them.

        The loss gives the last device all its gradients at once; to the others they come one by
        one.  The last microbatch is not recomputed: nothing holds it back.
        """
        last, stages = self.microbatches - 1, list(reversed(range(len(self.costs))))
        yield from (Pass(RECOMPUTE, stages[0], k) for k in reversed(range(last)))
        yield from (Pass(BACKWARD, stage, last) for stage in stages)
        for stage in stages:
            for k in reversed(range(last)):
                yield Pass(BACKWARD, stage, k)
                if stage:
                    yield Pass(RECOMPUTE, stage - 1, k)

    def _pass(self, op: str, stage: int, k: int) -> Issue:
        whole = self.costs[stage].whole
        if op == BACKWARD:
            seconds, purpose = whole.backward_s, "gradient"
            senders = [end for source, end, _ in self._ways if source == stage]
        else:
            seconds, purpose = whole.forward_s, "activation"
            senders = [source for source, end, _ in self._ways if end == stage]
        needs = tuple(Copy(purpose, sender, stage, k) for sender in senders)
        return Issue(Pass(op, stage, k), seconds, (("compute", stage),), needs)

    def _copies(self, purpose: str, stage: int, k: int) -> Iterator[Issue]:
        """Yield the copies into a stage before its forward, or back from it after its backward."""
        for source, destination, size in self._ways:
            if destination == stage:
                made = Pass(FORWARD, source, k)
                if purpose == "gradient":
                    made = Pass(BACKWARD, stage, k)
                    source, destination = stage, source
                seconds = size / self.links.bandwidth(source, destination)
                streams: tuple[Stream, ...] = ("out", source), ("in", destination)
                if not self.has.streams:
                    streams = ("compute", source), ("compute", destination)
                yield Issue(Copy(purpose, source, destination, k), seconds, streams, (made,), size)


def simulated(
    cell: Benchmark,
    profile: Profile,
    links: Cluster,
    has: Components,
    balance: Sequence[int] | None = None,
) -> Trace:
    """Return a batch on devices that have some of the components.

    The profile has the network's skips; by default the published ``balance`` counts.
    """
    table = as_drawn(cell.stages, cell.microbatches)
    costs = stage_costs(table, carried(profile, has), cell.plan(balance))
    name = "without " + " and ".join(has.missing or ("nothing",))
    return run(Host(costs, cell.microbatches, links, has).issues(), name, cell.stages)


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
    """Return whether every device goes backward from the last microbatch to the first, each right
    after its recomputation."""
    last = microbatches - 1
    pairs = [[(RECOMPUTE, k), (BACKWARD, k)] for k in reversed(range(last))]
    expected = [(BACKWARD, last), *(each for pair in pairs for each in pair)]
    behind = trace.frame[trace.frame["op"] != FORWARD].sort_values("start_s")
    return all(
        list(zip(own["op"], own["microbatch"], strict=True)) == expected
        for _, own in behind.groupby("worker")
    )


def copies_of(trace: Trace) -> pd.DataFrame:
    """Return the copies of a trace that :func:`run` made."""
    assert trace.transfers is not None
    return trace.transfers


def copying(trace: Trace) -> float:
    """Return the seconds of all copies together."""
    return float((copies_of(trace)["end_s"] - copies_of(trace)["start_s"]).sum())


def overlap(trace: Trace) -> float:
    """Return the share of the copies' time in which a device at their ends computes, both ends
    counted."""
    hidden = 0.0
    for side in ("source", "destination"):
        for start, end, device in copies_of(trace)[["start_s", "end_s", side]].to_numpy():
            hidden += study.busy_s(trace.frame[trace.frame["worker"] == device], start, end)
    return hidden / (2 * copying(trace))


def with_copies(trace: Trace) -> Trace:
    """Return a trace with two rows a device, as in Figure 7: what it computes, and its copies."""
    copies = copies_of(trace)
    ops = copies["purpose"].map({"activation": FORWARD, "gradient": BACKWARD})
    both = [
        copies.assign(op=ops, version=0, worker=2 * copies[end] + 1)
        for end in ("source", "destination")
    ]
    rows = [trace.frame.assign(worker=2 * trace.frame["worker"]), *both]
    frame = pd.concat(rows)[trace.frame.columns].sort_values(["worker", "start_s"])
    return replace(trace, frame=frame, workers=2 * trace.workers, transfers=None, memory=None)
