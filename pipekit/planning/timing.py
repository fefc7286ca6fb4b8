"""What a nested plan takes: seconds a minibatch, and which part is the slowest."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from pipekit.clusters import Level
from pipekit.planning.bottleneck import NestedStage
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import (
    Cost,
    Links,
    stage_seconds,
    sync_seconds,
    transfer_seconds,
)
from pipekit.plans import StagePlan, layers_text
from pipekit.units import plural


class Timed(NamedTuple):
    """A plan for some layers: seconds a minibatch, what takes them, and the stages."""

    seconds: float
    what: str
    stages: tuple[StagePlan, ...]


class PlanTiming:
    """Times nested plans for one profile (its ranges) and one cost model.

    Args:
        ranges: costs of a chain.
        cost, links: see :func:`pipekit.planning.pipedream.pipedream`.
        order: what the layers of the chain are called; empty: by their numbers.
    """

    def __init__(
        self, ranges: LayerRanges, cost: Cost, links: Links, order: Sequence[int] = ()
    ) -> None:
        self._ranges = ranges
        self._cost, self._links = cost, links
        self._names = order or range(ranges.layers)

    def chain(self, nodes: Sequence[NestedStage], levels: Sequence[Level]) -> Timed:
        """Return what stages that follow one another at the last of the levels take together."""
        parts = [self._stage(node, levels) for node in nodes]
        slowest = max(parts, key=lambda part: part.seconds)
        seconds, what, _ = slowest
        for number, (node, behind) in enumerate(pairwise(nodes)):
            size = float(self._ranges.boundary_bytes[node.stop])
            links = 1
            if self._links == "each":
                links = min(node.members, behind.members) if number else behind.members
            passing = float(transfer_seconds(size, levels[-1], links))
            if passing > seconds:
                seconds = passing
                last, first = self._names[node.stop - 1 : node.stop + 1]
                what = f"the transfer from layer {last} to {first}"
                what += f" over {levels[-1].name} ({milliseconds(passing)})"
        return Timed(seconds, what, tuple(stage for part in parts for stage in part.stages))

    def _stage(self, node: NestedStage, levels: Sequence[Level]) -> Timed:
        """Return what one stage at the last of the levels takes."""
        *below, level = levels
        first, stop, members, inside = node
        if inside:
            inner = self.chain(inside, below)
        else:
            seconds = float(self._ranges.compute_s(first, stop))
            inner = Timed(seconds, "", (StagePlan(first, stop, 1, predicted_s=seconds),))
        total = self._seconds(first, stop, inner.seconds, members, level)
        stages = tuple(
            replace(
                stage,
                replicas=stage.replicas * members,
                predicted_s=self._seconds(
                    stage.first, stage.stop, stage.predicted_s, members, level
                ),
            )
            for stage in inner.stages
        )
        layers = layers_text(self._names[first:stop])
        if self._sync(first, stop, members, level) > inner.seconds:
            what = f"the synchronisation of {layers} over {level.name} ({milliseconds(total)})"
        elif not inner.what:
            what = f"the compute of {layers} on {plural(members, 'worker')} ({milliseconds(total)})"
        elif members > 1:
            what = f"{inner.what}, in {members} groups at once ({milliseconds(total)})"
        else:
            what = inner.what
        return Timed(total, what, stages)

    def _seconds(self, first: int, stop: int, compute: float, members: int, level: Level) -> float:
        sync = self._sync(first, stop, members, level)
        return float(stage_seconds(self._cost, compute, sync, members))

    def _sync(self, first: int, stop: int, members: int, level: Level) -> float:
        return float(sync_seconds(self._ranges.parameter_bytes(first, stop), members, level))


def milliseconds(seconds: float) -> str:
    """Return a time for a message."""
    return f"{seconds * 1e3:.4g} ms"
