"""What updates wait for: sums of gradients over workers, shared weights, and all other workers."""

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from pipekit.schedules import Schedule
from pipekit.schedules.clock import Need
from pipekit.schedules.dependencies import NOBODY, Dependencies
from pipekit.simulation.costs import StageCosts, ties_of
from pipekit.simulation.loads import Loads
from pipekit.simulation.things import Sum, Things

Turn = tuple[int, int]
"""A worker, or a stage, and a version that its updates make."""


def add_sums(
    things: Things,
    schedule: Schedule,
    costs: Sequence[StageCosts],
    load: Loads,
    waits: Mapping[int, int],
) -> None:
    """Let updates wait for all sums that they need.

    ``waits`` names the update to which all workers have come before a task begins.
    """
    graph = schedule.dependencies
    updates = graph.of(lambda op: not op.is_pass)
    firsts: dict[Turn, int] = {}  # each worker's first update of each version
    for number in updates:
        firsts.setdefault((graph.worker_of[number], graph.tasks[number].version), number)
    summed = _sums_of_stages(things, schedule, costs, load)
    shared = _sums_of_ties(things, schedule, costs, firsts, summed)
    needs = dict[int, Need]()
    for number in updates:
        _, stage, _, version = graph.tasks[number]
        needs[number] = _over(summed, costs[stage].buckets, stage, version)
        worker = graph.worker_of[number]
        needs[number] += _over(shared, any(w == worker for w, _ in shared), worker, version)
        things.needs[number] += needs[number]
    if waits:
        met = _meetings(
            things, graph, {turn: needs[first] for turn, first in firsts.items()}, firsts
        )
        busy = [worker for worker, tasks in enumerate(schedule.workers) if tasks]
        for number, version in waits.items():
            things.needs[number] += tuple((met.get((w, version), NOBODY), 0.0) for w in busy)


def _over(sums: Mapping[Turn, int], concerned: object, who: int, version: int) -> Need:
    """Return the need of a sum, if it concerns an update."""
    return ((sums.get((who, version), NOBODY), 0.0),) if concerned else ()


def _sums_of_stages(
    things: Things, schedule: Schedule, costs: Sequence[StageCosts], load: Loads
) -> dict[Turn, int]:
    """Add the sums of stages on several workers; return the last of each stage and update.

    They are made bucket by bucket, one at a time, in an order that all workers keep to.
    """
    graph, found = schedule.dependencies, dict[Turn, int]()
    for stage, cost in enumerate(costs):
        before: Need = ()
        for version, summed in enumerate(schedule.updates[stage] if cost.buckets else (), start=1):
            last: dict[int, int] = {}  # of each worker, that adds a gradient
            for number in graph.adders[stage][summed.start : summed.stop]:
                worker = graph.worker_of[number]
                last[worker] = max(number, last.get(worker, number))
            for bucket in cost.buckets:
                to_come = cost.layers[: bucket[-1]]  # behind the last of the bucket
                each = tuple(
                    (n, -sum(x.seconds(graph.tasks[n].op) for x in to_come) * load.times[n])
                    for n in last.values()
                )
                size = cost.bucket_bytes(bucket)
                number = things.add_sum(Sum(cost.workers, size, stage, summed[-1]), before + each)
                before = ((number, 0.0),)
            found[stage, version] = before[0][0]
    return found


def _sums_of_ties(
    things: Things,
    schedule: Schedule,
    costs: Sequence[StageCosts],
    firsts: Mapping[Turn, int],
    summed: Mapping[Turn, int],
) -> dict[Turn, int]:
    """Add the sums of weights that stages share; return the last of each worker and update.

    As the engine does it (:mod:`pipekit.engine.updates.all_reduce`), every worker of a tie waits,
    before its first update of a version, until all of them have come to theirs, and has its ties
    one after the other.
    """
    graph, ties = schedule.dependencies, []
    for tie in ties_of(costs):
        workers = [worker for stage in tie.layers for worker in costs[stage].workers]
        if len(members := tuple(dict.fromkeys(workers))) > 1:
            ties.append((tie, members))
    concerned = {worker for _, members in ties for worker in members}
    here = {turn: number for turn, number in firsts.items() if turn[0] in concerned}
    came = dict[Turn, Need]()
    for turn, number in here.items():
        stage = graph.tasks[number].stage
        came[turn] = _over(summed, costs[stage].buckets, stage, turn[1])
    last = _meetings(things, graph, came, here)
    for version in sorted({version for _, version in last}):
        for tie, members in ties:
            needs = tuple((last.get((worker, version), NOBODY), 0.0) for worker in members)
            stage = tie.layers[0]
            microbatch = schedule.updates[stage][:version][-1][-1]
            made = Sum(members, tie.bytes, stage, microbatch, _sent(members, tie.bytes))
            last |= dict.fromkeys(((w, version) for w in members), things.add_sum(made, needs))
    return last


def _meetings(
    things: Things, graph: Dependencies, needs: Mapping[Turn, Need], firsts: Mapping[Turn, int]
) -> dict[Turn, int]:
    """Let workers come to their updates: things without length, each before the first update."""
    before = np.full(len(graph.tasks), NOBODY)
    numbers = things.add(np.zeros(len(needs)), [*needs.values()])
    before[[firsts[turn] for turn in needs]] = numbers
    things.put(before)
    return dict(zip(needs, numbers, strict=True))


def _sent(members: tuple[int, ...], size: float) -> list[tuple[int, int, float]]:
    """Return who sends whom how many bytes: the first its sum by parts, and each then its part."""
    part = size / len(members)
    return [(a, b, part * (2 if a == members[0] else 1)) for a, b in permutations(members, 2)]
