"""torchgpipe's components: what order, streams and portals are good for (section 4.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from experiments.study.costs import stretched
from experiments.study.traces import memory_of
from experiments.torchgpipe.ablation.host import BACKWARD, FORWARD, Host
from experiments.torchgpipe.ablation.streams import copies_of, copying, overlap, run
from experiments.torchgpipe.as_drawn import as_drawn
from experiments.torchgpipe.settings import TABLE4, Benchmark, printed_cell
from experiments.torchgpipe.speed import rates
from pipekit.clusters import Cluster
from pipekit.profiling import Profile
from pipekit.simulation.costs import stage_costs
from pipekit.traces import RECOMPUTE, Trace


class Components(NamedTuple):
    """Which components are there (section 3.2.2, 3.2.3, 3.3)."""

    order: bool  # of backwards, by Fork and Join
    streams: bool  # of their own for copies
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


def simulated(
    cell: Benchmark,
    profile: Profile,
    cluster: Cluster,
    has: Components,
    balance: Sequence[int] | None = None,
) -> Trace:
    """Return a batch on devices that have some of the components (simulated).

    The profile has the network's skips; by default the published ``balance`` counts.
    """
    table = as_drawn(cell.stages, cell.microbatches)
    costs = stage_costs(table, carried(profile, has), cell.plan(balance))
    host = Host(costs, cell.microbatches, cluster, order=has.order, streams=has.streams)
    return run(host.issues(), "without " + " and ".join(has.missing or ("nothing",)), cell.stages)


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


def as_fast_as_naive_1(cell: Benchmark) -> Profile:
    """Return what a microbatch costs on a P40 that trains Table 4's naive-1 as fast as the paper's.

    One factor for all layers, fitted to one cell of another table, which has one device and so
    no link: 28.5 rows a second.  It sets how long computing takes beside copying.
    """
    estimated, naive = rates.profile_of(cell.network, cell.rows), TABLE4[0]
    published = printed_cell(4, "naive-1-throughput")
    assert published is not None
    rate = naive.batch / rates.simulated(naive, estimated, None).makespan_s
    return stretched(estimated, rate / published)


def live_bytes(cell: Benchmark, profile: Profile, has: Components) -> tuple[int, ...]:
    """Return the most bytes on each device (simulated).

    Without order all graphs are there at once, as if nothing were recomputed; streams are not in
    this model.
    """
    held = cell if has.order else replace(cell, recompute="never")
    return memory_of(rates.simulated(held, carried(profile, has), None)).peak_bytes


def patterns(a: Trace, b: Trace, c: Trace, d: Trace, microbatches: int) -> list[bool]:
    """Return which of Figure 7's panels show what section 4.1 says of them.

    (a) backwards in disorder; (b) in order, and no copy beside computing; (c) copies beside
    computing; (d) less copying than (c).
    """
    first, *others = (in_order(trace, microbatches) for trace in (a, b, c, d))
    beside = [not overlap(b), overlap(c) > 0, copying(d) < copying(c)]
    return [not first, *(x and y for x, y in zip(others, beside, strict=True))]


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
