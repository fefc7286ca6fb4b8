"""What torchgpipe's host issues for a batch, with and without its components (section 3.2)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipekit.clusters import Cluster
from pipekit.papers.torchgpipe.ablation.streams import Copy, Issue, Pass, Stream
from pipekit.simulation.costs import StageCosts, skips_of
from pipekit.traces import RECOMPUTE

FORWARD, BACKWARD = "FORWARD", "BACKWARD"


class _Way(NamedTuple):
    """What goes from one stage to another for each microbatch, in bytes; gradients go back."""

    source: int
    destination: int
    size: float


class Host:
    """Issues a batch.

    Forwards are issued in clock cycles (Algorithm 1).  With order, backwards are issued in the
    mirror image of these.  Without it, autograd goes by the numbers of its nodes: see
    :mod:`pipekit.papers.torchgpipe.ablation.checkpointing`.  A device then recomputes every
    microbatch as soon as its gradient is there, and goes backward through none of them before it
    has all.

    Without streams of their own, copies are issued to the computing streams of both devices, and
    hold up both (section 3.1: "two-way synchronization"); with them, only the link.

    Args:
        costs: of each stage; what their skips are decides what is copied where.
        microbatches: m; all but the last are recomputed.
        cluster: the links.
        order: whether Fork and Join are there.
        streams: whether copies have streams of their own.
    """

    def __init__(
        self,
        costs: Sequence[StageCosts],
        microbatches: int,
        cluster: Cluster,
        *,
        order: bool,
        streams: bool,
    ) -> None:
        self.costs, self.cluster, self.order, self.streams = costs, cluster, order, streams
        self.stages, self.microbatches = len(costs), microbatches
        self.ways = _ways(costs)

    def issues(self) -> Iterator[Issue]:
        """Yield everything in the order of issue."""
        for cycle in self._cycles():
            for stage, k in cycle:
                yield from self._copies("activation", stage, k)
            for stage, k in cycle:
                yield self._pass(FORWARD, stage, k)
        for op, stage, k in self._ordered() if self.order else self._unordered():
            yield self._pass(op, stage, k)
            if op == BACKWARD:
                yield from self._copies("gradient", stage, k)

    def _cycles(self) -> list[list[tuple[int, int]]]:
        """Return (stage, microbatch) of each clock cycle."""
        m, n = self.microbatches, self.stages
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
        last, stages = self.microbatches - 1, list(reversed(range(self.stages)))
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
            senders = [way.destination for way in self.ways if way.source == stage]
        else:
            seconds, purpose = whole.forward_s, "activation"
            senders = [way.source for way in self.ways if way.destination == stage]
        needs = tuple(Copy(purpose, sender, stage, k) for sender in senders)
        return Issue(Pass(op, stage, k), seconds, (("compute", stage),), needs)

    def _copies(self, purpose: str, stage: int, k: int) -> Iterator[Issue]:
        """Yield the copies into a stage before its forward, or back from it after its backward."""
        for source, destination, size in self.ways:
            if destination == stage:
                made = Pass(FORWARD, source, k)
                if purpose == "gradient":
                    made = Pass(BACKWARD, stage, k)
                    source, destination = stage, source
                seconds = size / self.cluster.bandwidth(source, destination)
                streams: tuple[Stream, ...] = ("out", source), ("in", destination)
                if not self.streams:
                    streams = ("compute", source), ("compute", destination)
                yield Issue(Copy(purpose, source, destination, k), seconds, streams, (made,), size)


def _ways(costs: Sequence[StageCosts]) -> list[_Way]:
    """Return what goes where for each microbatch."""
    sizes: dict[tuple[int, int], float] = defaultdict(float)
    for stage, cost in enumerate(costs[:-1]):
        sizes[stage, stage + 1] += cost.whole.output_bytes
    for skip in skips_of(costs):
        sizes[skip.source, skip.destination] += skip.bytes
    return [_Way(*ends, size) for ends, size in sizes.items()]
