"""PipeDream's planner: stages, each on as many workers as it needs (section 3.2)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pipekit.clusters import Cluster, Level
from pipekit.planning.bottleneck import TIE, BottleneckProgram, NestedStage
from pipekit.planning.layer_ranges import bytes_text
from pipekit.planning.objectives import (
    Cost,
    Links,
    Seconds,
    stage_seconds,
    sync_seconds,
)
from pipekit.planning.search_space import SearchSpace, Settled
from pipekit.planning.timing import PlanTiming, Timed, milliseconds
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import optimal_in_flight


def pipedream(
    profile: Profile,
    cluster: Cluster,
    *,
    cost: Cost = "paper",
    links: Links = "one",
    replicate: bool = True,
    optimizer_states: float = 1,
    progress: bool = False,
) -> Plan:
    """Return the plan with the least seconds a minibatch in steady state (PipeDream, 3.2).

    These seconds are those of the slowest stage or transfer.  A stage of m replicas takes
    max(compute, sync) / m, or (compute + sync) / m as in the released optimizer, where ``compute``
    is one minibatch's forward, backward and optimizer step, and ``sync`` is ``4 (m - 1) / m |w|`` /
    bandwidth, once in a round of m minibatches.  A transfer takes 2 C, activation and gradient.
    Latencies do not count; every link is taken to be its member's own.

    With several levels the plan is hierarchical: what the program finds for all workers of a group
    is what one member computes at the next level.  The plan returned is the best of the
    hierarchical ones for the cluster and for one of its groups at each level, and of the flat one
    that takes all links to be as slow as the slowest.  Workers, and members of the outermost level
    that is used, may stay idle.

    A worker's memory has to hold, for every minibatch in flight, a weight version and the
    activations, and once the gradients, the optimizer's state and the buffers.  In flight are
    ceil(workers from this stage to the end / replicas of this stage) a replica, which for the first
    stage is NOAM.  The plan is the best of those that fit.

    A profile that is a graph (:attr:`Profile.values`) is cut at its states, the sets of layers that
    hold, with a layer, also what it reads, as in the released optimizer.  The plan's stages then
    name layers in the plan's order.  If a graph has more than
    :data:`pipekit.planning.states.MOST_STATES`, only cuts in the profile's own order are tried, and
    the plan says so.

    Equally fast plans (to one part in 10^9): fewest workers, then hierarchical before flat, then
    most layers on the first stage, fewest replicas of it, and so on with the second.

    Args:
        profile: costs of a minibatch on one worker.
        cluster: the workers and their links.
        cost: "paper" (the maximum of compute and synchronisation) or "released" (their sum).
        links: "one": a transfer takes 2 C, however many replicas send and receive it (the paper).
            "each": it takes 2 C / m for the stage that receives it and, unless it is the first, for
            the one that sends it (the released optimizer, told to count transfers).
        replicate: False for a straight pipeline, each stage on one worker.
        optimizer_states: tensors of a parameter's size that the optimizer keeps for each: 0 for
            plain SGD, 1 with momentum, 2 for Adam.
        progress: whether to show a bar, if it takes more than a second.

    Raises:
        ValueError: no plan fits the workers' memory; the message says how much would do.
    """
    if cost not in ("paper", "released"):
        raise ValueError(f"cost must be 'paper' or 'released', not {cost!r}")
    if links not in ("one", "each"):
        raise ValueError(f"links must be 'one' or 'each', not {links!r}")
    planner = _Planner(profile, cluster, cost, links, optimizer_states, progress)
    best = planner.best(replicate)
    if best is None:
        raise ValueError(planner.why_nothing_fits(replicate))
    (seconds, what, timed), settled = best
    in_flight = optimal_in_flight([stage.replicas for stage in timed])
    return Plan(
        method="pipedream",
        stages=tuple(
            replace(stage, memory_bytes=settled.memory.of(stage.first, stage.stop, count))
            for stage, count in zip(timed, in_flight, strict=True)
        ),
        microbatch_rows=profile.rows,
        in_flight=in_flight[0],
        predicted_s=seconds,
        why=f"The slowest is {what}. {planner.compared()}{planner.remark}",
        order=settled.order,
    )


class _Planner:
    """One profile, cluster and cost."""

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        cost: Cost,
        links: Links,
        optimizer_states: float,
        progress: bool,
    ) -> None:
        self._progress = progress
        self._cluster = cluster
        self._cost, self._links = cost, links
        self._space = SearchSpace(profile, optimizer_states)
        self._ranges, self._memory = self._space.ranges, self._space.memory
        self.remark = self._space.remark

    def best(self, replicate: bool) -> tuple[Timed, Settled] | None:
        """Return the times of the best plan that fits, and its layers in one order; or None."""
        programs = self._programs(replicate)
        least = min(program.least() for program, _ in programs) * (1 + TIE)
        if least == math.inf:
            return None
        return min(
            (
                self._settled(program.plan(), levels)
                for program, levels in programs
                if program.least() <= least
            ),
            key=lambda found: sum(stage.replicas for stage in found[0].stages),
        )

    def _programs(self, replicate: bool) -> list[tuple[BottleneckProgram, Sequence[Level]]]:
        """Return the programs of the hierarchies that may have the best plan."""
        programs = []
        compute, least = self._ranges.compute_s(0, self._ranges.layers), math.inf
        for levels in self._hierarchies():
            # A plan takes no less than if its workers shared all the compute evenly.
            evenly = compute / math.prod(level.width for level in levels)
            if evenly <= least * (1 + TIE):
                program = self._program(levels, replicate)
                least = min(least, program.least(self._progress))
                programs.append((program, levels))
        return programs

    def _program(self, levels: Sequence[Level], replicate: bool) -> BottleneckProgram:
        limit = self._cluster.device.memory_bytes
        objective = Seconds(self._ranges, levels, self._cost, self._memory, limit, self._links)
        widths = [level.width for level in levels]
        return BottleneckProgram(objective, self._ranges.layers, widths, replicate)

    def _settled(
        self, nodes: Sequence[NestedStage], levels: Sequence[Level]
    ) -> tuple[Timed, Settled]:
        settled = self._space.settle(nodes, self._cluster.device.memory_bytes)
        timing = PlanTiming(settled.ranges, self._cost, self._links, settled.order)
        return timing.chain(settled.nodes, levels), settled

    def compared(self) -> str:
        """Return what plain data parallelism and a straight pipeline would take."""
        layers = self._ranges.layers
        parameters = self._ranges.parameter_bytes(0, layers)
        everywhere = self._ranges.compute_s(0, layers)
        for level in self._cluster.levels:
            sync = sync_seconds(parameters, level.width, level)
            everywhere = stage_seconds(self._cost, everywhere, sync, level.width)
        straight = min(program.least() for program, _ in self._programs(replicate=False))
        memory = self._cluster.device.memory_bytes
        fits = memory == math.inf or self._memory.of(0, layers, 1) <= memory
        return (
            f"Data parallelism on all {self._cluster.workers} workers would take "
            f"{milliseconds(float(everywhere))}{'' if fits else ' (but does not fit)'}, a straight "
            f"pipeline {'(does not fit)' if straight == math.inf else milliseconds(straight)}."
        )

    def why_nothing_fits(self, replicate: bool) -> str:
        """Return what is the least memory with which a plan exists."""
        program = BottleneckProgram(
            self._memory, self._ranges.layers, [self._cluster.workers], replicate
        )
        least = bytes_text(program.least(self._progress))
        return (
            f"no plan fits the {bytes_text(self._cluster.device.memory_bytes)} of a worker: on up "
            f"to {self._cluster.workers} workers, give each at least {least}"
        )

    def _hierarchies(self) -> list[Sequence[Level]]:
        levels = self._cluster.levels
        slowest = min(levels, key=lambda level: level.used_bandwidth)
        candidates: list[Sequence[Level]] = [levels[:k] for k in range(len(levels), 0, -1)]
        if len(levels) > 1:
            candidates.append((replace(slowest, width=self._cluster.workers),))
        return candidates
