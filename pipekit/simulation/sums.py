"""What updates wait for: sums of gradients over workers, shared weights, and all other workers.

To clip gradients by their norm over all stages, or to skip an update that overflows, is a global
stop between two batches.  Instead a worker may make the update at once, run forwards on the new
weights, and validate later (Qi et al., "Zero Bubble Pipeline Parallelism", section 4).  The engine
waits; the simulator predicts both.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from pipekit.schedules import Schedule
from pipekit.schedules.clock import Need
from pipekit.schedules.dependencies import NOBODY, Dependencies
from pipekit.schedules.ops import Op
from pipekit.schedules.replay import Replay
from pipekit.simulation.costs import StageCosts, ties_of
from pipekit.simulation.loads import Activities, GradientSum, Loads

_Update = tuple[int, int]
"""A worker, or a stage, and the version that its updates make."""


def add_sums(
    activities: Activities,
    schedule: Schedule,
    costs: Sequence[StageCosts],
    load: Loads,
    waits: Mapping[int, int],
) -> None:
    """Let updates wait for all sums that they need.

    ``waits`` names the update to which all workers have come before a task begins.
    """
    graph = schedule.dependencies
    updates, firsts = graph.of(lambda op: not op.is_pass), _first_updates(graph)
    summed = _sums_of_stages(activities, schedule, costs, load)
    shared = _sums_of_ties(activities, schedule, costs, firsts, summed)
    sharing = {worker for worker, _ in shared}
    needs = dict[int, Need]()
    for number in updates:
        worker, (_, stage, _, version) = graph.worker_of[number], graph.tasks[number]
        needs[number] = _over(summed, costs[stage].buckets, stage, version)
        needs[number] += _over(shared, worker in sharing, worker, version)
        activities.needs[number] += needs[number]
    if waits:
        of_firsts = {update: needs[number] for update, number in firsts.items()}
        met = _meetings(activities, graph, of_firsts, firsts)
        busy = [worker for worker, tasks in enumerate(schedule.workers) if tasks]
        for number, version in waits.items():
            activities.needs[number] += tuple((met.get((w, version), NOBODY), 0.0) for w in busy)


def _over(sums: Mapping[_Update, int], concerned: object, who: int, version: int) -> Need:
    """Return the need of a sum, if it concerns an update."""
    return ((sums.get((who, version), NOBODY), 0.0),) if concerned else ()


def _sums_of_stages(
    activities: Activities, schedule: Schedule, costs: Sequence[StageCosts], load: Loads
) -> dict[_Update, int]:
    """Add the sums of stages on several workers; return the last of each stage and update.

    They are made bucket by bucket, one at a time, in an order that all workers keep to.
    """
    graph, found = schedule.dependencies, dict[_Update, int]()
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
                made = GradientSum(cost.workers, size, stage, summed[-1])
                before = ((activities.add_sum(made, before + each), 0.0),)
            found[stage, version] = before[0][0]
    return found


def _sums_of_ties(
    activities: Activities,
    schedule: Schedule,
    costs: Sequence[StageCosts],
    firsts: Mapping[_Update, int],
    summed: Mapping[_Update, int],
) -> dict[_Update, int]:
    """Add the sums of weights that stages share; return the last of each worker and update.

    As in :mod:`pipekit.engine.updates.all_reduce`, every worker of a tie waits, before its first
    update of a version, until all of them have come to theirs, and has its ties one after another.
    """
    graph, ties = schedule.dependencies, []
    for tie in ties_of(costs):
        workers = [worker for stage in tie.layers for worker in costs[stage].workers]
        if len(members := tuple(dict.fromkeys(workers))) > 1:
            ties.append((tie, members))
    sharing = {worker for _, members in ties for worker in members}
    came = dict[_Update, Need]()
    for (worker, version), number in firsts.items():
        if worker in sharing:
            stage = graph.tasks[number].stage
            came[worker, version] = _over(summed, costs[stage].buckets, stage, version)
    last = _meetings(activities, graph, came, firsts)
    for version in sorted({version for _, version in last}):
        for tie, members in ties:
            needs = tuple((last.get((worker, version), NOBODY), 0.0) for worker in members)
            stage = tie.layers[0]
            microbatch = schedule.updates[stage][:version][-1][-1]
            # The first sends its sum by parts, and then each its part.
            part = tie.bytes / len(members)
            sent = [(a, b, part * (1 + (a == members[0]))) for a, b in permutations(members, 2)]
            made = GradientSum(members, tie.bytes, stage, microbatch, sent)
            last |= dict.fromkeys(((w, version) for w in members), activities.add_sum(made, needs))
    return last


def _meetings(
    activities: Activities,
    graph: Dependencies,
    needs: Mapping[_Update, Need],
    firsts: Mapping[_Update, int],
) -> dict[_Update, int]:
    """Let workers come to their updates: activities of no length before the first updates."""
    before = np.full(len(graph.tasks), NOBODY)
    numbers = activities.add(np.zeros(len(needs)), [*needs.values()])
    before[[firsts[update] for update in needs]] = numbers
    if len(numbers):
        activities.put(before)
    return dict(zip(needs, numbers, strict=True))


def validation_waits(schedule: Schedule, later: bool) -> dict[int, int]:
    """Return the tasks that wait until all workers have come to an update, and its number.

    They are the first update of each version, or if it is validated ``later``, the first task
    behind it that cannot be run again.  Only forwards that another stage waits for can be: what
    depends on the update and adds gradients, leaves the pipeline or is of a batch behind comes
    after the validation.  That costs nothing where every microbatch passes all stages: what has
    been through the last of them comes after all updates.
    """
    graph = schedule.dependencies
    if not later:
        return {number: version for (_, version), number in _first_updates(graph).items()}
    # For each task the newest version on which its result depends, on whatever stage.
    newest = [0] * (len(graph.tasks) + 1)  # the last is found at NOTHING, -1
    for number in Replay(graph).order():
        version = graph.tasks[number].version
        newest[number] = max(version, newest[graph.own[number]], newest[graph.source[number]])
    found: dict[int, int] = {}
    for first, tasks in zip(graph.first, schedule.workers, strict=False):
        last = pending = 0  # the newest update, and the one that is to be validated
        batch = NOBODY  # that runs on it
        for number, task in enumerate(tasks, first):
            if not task.op.is_pass:
                if task.version > last:  # of several stages, the first one's is begun for all
                    if pending:
                        found[number] = pending
                    last = pending = task.version
                    batch = NOBODY
            elif pending and newest[number] >= pending:
                own = schedule.batch_of[task.microbatch]
                batch = own if batch == NOBODY else batch
                if task.op is not Op.FORWARD or graph.target[number] < 0 or own != batch:
                    found[number], pending = pending, 0
    return found


def _first_updates(graph: Dependencies) -> dict[_Update, int]:
    firsts: dict[_Update, int] = {}
    for number in graph.of(lambda op: not op.is_pass):
        firsts.setdefault((graph.worker_of[number], graph.tasks[number].version), number)
    return firsts
