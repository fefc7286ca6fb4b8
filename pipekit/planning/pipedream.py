"""PipeDream's planner: stages, each on as many workers as it needs (section 3.2)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from pipekit.choices import require_choice
from pipekit.clusters import Cluster, Level
from pipekit.planning.bottleneck import TIE, BottleneckProgram, NestedStage
from pipekit.planning.layer_ranges import LayerRanges, exact_bytes, milliseconds
from pipekit.planning.objectives import (
    Bytes,
    Cost,
    Seconds,
    stage_seconds,
    sync_seconds,
    transfer_seconds,
)
from pipekit.plans import Plan, StagePlan, layers_text
from pipekit.profiling import Profile
from pipekit.schedules import optimal_in_flight
from pipekit.units import plural


def pipedream(
    profile: Profile,
    cluster: Cluster,
    *,
    cost: Cost = "paper",
    replicate: bool = True,
    optimizer_states: float = 1,
) -> Plan:
    """Return the plan with the least seconds a minibatch in steady state (PipeDream, 3.2).

    These seconds are those of the slowest stage or transfer.  A stage of m replicas takes
    max(compute, sync) / m, or (compute + sync) / m as in the released optimizer, where ``compute``
    is one minibatch's forward, backward and optimizer step, and ``sync`` is ``4 (m - 1) / m |w|`` /
    bandwidth, once in a round of m minibatches.  A transfer takes 2 C, activation and gradient.
    Latencies do not count; every link is taken to be its member's own.

    The best is taken of the hierarchical plans for the cluster and for one of its groups at each
    level, and of the flat one over links that are all as slow as the slowest.  Workers, and members
    of the outermost level that is used, may stay idle.

    A worker's memory has to hold, for every minibatch in flight, a weight version and the
    activations, and once the gradients, the optimizer's state and the buffers.  In flight are
    ceil(workers from this stage to the end / replicas of this stage) a replica.

    Equally fast plans (to one part in 10^9): fewest workers, then hierarchical before flat, then
    most layers on the first stage, fewest replicas of it, and so on with the second.

    Args:
        profile, cluster, optimizer_states: as for :func:`.plan`.
        cost: "paper" (the maximum of compute and synchronisation) or "released" (their sum).
        replicate: False for a straight pipeline, each stage on one worker.

    Raises:
        ValueError: no plan fits the workers' memory; the message says how much would do.
    """
    require_choice("cost", cost, get_args(Cost))
    ranges = LayerRanges(profile)
    memory = Bytes(ranges, optimizer_states)
    planner = _Planner(ranges, memory, cluster, cost)
    seconds, what, timed = planner.best(replicate)
    in_flight = optimal_in_flight([stage.replicas for stage in timed])
    return Plan(
        method="pipedream",
        stages=tuple(
            replace(stage, memory_bytes=float(memory.of(stage.first, stage.stop, count)))
            for stage, count in zip(timed, in_flight, strict=True)
        ),
        microbatch_rows=profile.rows,
        in_flight=in_flight[0],
        predicted_s=seconds,
        why=f"The slowest is {what}. {planner.compared()}",
    )


class _Timed(NamedTuple):
    """A plan for some layers: seconds a minibatch, what takes them, and the stages."""

    seconds: float
    what: str
    stages: tuple[StagePlan, ...]


@dataclass(frozen=True)
class _Planner:
    ranges: LayerRanges
    memory: Bytes
    cluster: Cluster
    cost: Cost

    @property
    def limit(self) -> float:
        return self.cluster.device.memory_bytes

    def best(self, replicate: bool) -> _Timed:
        """Return the times of the best plan that fits; ValueError if there is none."""
        programs = self._programs(replicate)
        least = min(program.least() for program, _ in programs) * (1 + TIE)
        if least == math.inf:
            workers, layers = self.cluster.workers, self.ranges.layers
            smallest = BottleneckProgram(self.memory, layers, [workers], replicate)
            raise ValueError(
                f"no plan fits the {exact_bytes(self.limit)} of a worker: on up to {workers} "
                f"workers, give each at least {exact_bytes(smallest.least())}"
            )
        best = [each for each in programs if each[0].least() <= least]
        found = [self._chain(program.plan(), levels) for program, levels in best]
        return min(found, key=lambda found: sum(stage.replicas for stage in found.stages))

    def _programs(self, replicate: bool) -> list[tuple[BottleneckProgram, Sequence[Level]]]:
        every = self.cluster.levels
        hierarchies: list[Sequence[Level]] = [every[:k] for k in range(len(every), 0, -1)]
        if len(every) > 1:
            slowest = min(every, key=lambda level: level.used_bandwidth)
            hierarchies.append((replace(slowest, width=self.cluster.workers),))
        programs = []
        ranges, least = self.ranges, math.inf
        compute = ranges.total("compute_s", 0, ranges.layers)
        for levels in hierarchies:
            widths = [level.width for level in levels]
            # A plan takes no less than if its workers shared all the compute evenly.
            if compute / math.prod(widths) <= least * (1 + TIE):
                objective = Seconds(ranges, levels, self.cost, self.memory, self.limit)
                program = BottleneckProgram(objective, ranges.layers, widths, replicate)
                least = min(least, program.least())
                programs.append((program, levels))
        return programs

    def compared(self) -> str:
        ranges, layers = self.ranges, self.ranges.layers
        everywhere = ranges.total("compute_s", 0, layers)
        for level in self.cluster.levels:
            sync = sync_seconds(ranges.total("parameter_bytes", 0, layers), level.width, level)
            everywhere = stage_seconds(self.cost, everywhere, sync, level.width)
        straight = min(program.least() for program, _ in self._programs(replicate=False))
        fits = self.limit == math.inf or self.memory.of(0, layers, 1) <= self.limit
        return (
            f"Data parallelism on all {self.cluster.workers} workers would take "
            f"{milliseconds(float(everywhere))}{'' if fits else ' (but does not fit)'}, a straight "
            f"pipeline {'(does not fit)' if straight == math.inf else milliseconds(straight)}."
        )

    def _chain(self, nodes: Sequence[NestedStage], levels: Sequence[Level]) -> _Timed:
        """Return what stages that follow one another at the last of the levels take together."""
        parts = [self._stage(node, levels) for node in nodes]
        seconds, what, _ = max(parts, key=lambda part: part.seconds)
        for node in nodes[1:]:
            passing = float(transfer_seconds(self.ranges.boundary_bytes[node.first], levels[-1]))
            if passing > seconds:
                seconds = passing
                what = f"the transfer from layer {node.first - 1} to {node.first}"
                what += f" over {levels[-1].name} ({milliseconds(passing)})"
        return _Timed(seconds, what, tuple(stage for part in parts for stage in part.stages))

    def _stage(self, node: NestedStage, levels: Sequence[Level]) -> _Timed:
        """Return what one stage at the last of the levels takes."""
        ranges, (*below, level) = self.ranges, levels
        first, stop, members, inside = node
        if inside:
            inner = self._chain(inside, below)
        else:
            seconds = float(ranges.total("compute_s", first, stop))
            inner = _Timed(seconds, "", (StagePlan(first, stop, 1, predicted_s=seconds),))

        def shared(first: int, stop: int, alone_s: float) -> tuple[float, bool]:
            """Return the seconds on all members, and whether these wait for their weights."""
            sync = sync_seconds(ranges.total("parameter_bytes", first, stop), members, level)
            return float(stage_seconds(self.cost, alone_s, sync, members)), bool(sync > alone_s)

        total, waits = shared(first, stop, inner.seconds)
        layers, what = layers_text(first, stop), inner.what
        if waits:
            what = f"the synchronisation of {layers} over {level.name} ({milliseconds(total)})"
        elif not what:
            what = f"the compute of {layers} on {plural(members, 'worker')} ({milliseconds(total)})"
        elif members > 1:
            what += f", in {members} groups at once ({milliseconds(total)})"
        stages = []
        for each in inner.stages:
            own_s, _ = shared(each.first, each.stop, each.predicted_s)
            stages.append(replace(each, replicas=each.replicas * members, predicted_s=own_s))
        return _Timed(total, what, tuple(stages))
