"""What torchgpipe's host issues for a batch, with and without its components (section 3.2)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.torchgpipe.ablation.streams import Copy, Issue, Pass, Stream
from pipekit.clusters import Cluster
from pipekit.simulation.costs import StageCosts, skips_of
from pipekit.traces import RECOMPUTE

FORWARD, BACKWARD = "FORWARD", "BACKWARD"


@dataclass(frozen=True)
class Host:
    """Issues a batch.

    Forwards are issued in clock cycles (Algorithm 1).  With order, backwards are issued in the
    mirror image of these.  Without it, autograd goes by the numbers of its nodes: see
    :mod:`experiments.torchgpipe.ablation.checkpointing`.  A device then recomputes every
    microbatch as soon as its gradient is there, and goes backward through none of them before it
    has all.

    Without streams of their own, copies are issued to the computing streams of both devices, and
    hold up both (section 3.1: "two-way synchronization"); with them, only the link.

    """

    costs: Sequence[StageCosts]  # of each stage; their skips decide what is copied where
    microbatches: int  # m; all but the last are recomputed
    cluster: Cluster  # the links
    order: bool  # whether Fork and Join are there
    streams: bool  # whether copies have streams of their own

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
        for op, stage, k in self._ordered() if self.order else self._unordered():
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
                seconds = size / self.cluster.bandwidth(source, destination)
                streams: tuple[Stream, ...] = ("out", source), ("in", destination)
                if not self.streams:
                    streams = ("compute", source), ("compute", destination)
                yield Issue(Copy(purpose, source, destination, k), seconds, streams, (made,), size)
