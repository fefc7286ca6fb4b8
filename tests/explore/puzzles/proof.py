"""An independent judge of the page's bound: no order of a level's tasks is shorter."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product

from pipekit.clusters import V100, Cluster, Level
from pipekit.explore.puzzles.levels import Puzzle
from pipekit.profiling import Profile
from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.replay import Replay
from pipekit.simulation import Costs, simulate
from pipekit.traces import Trace

_NO_TIME = 1e18
"""Bytes/s of a link whose messages take its latency only."""


def played(level: Puzzle) -> Trace:
    """The best schedule with the level's costs, a second a slot where they differ."""
    if not (level.stages or level.workers or level.link):
        return Trace.from_schedule(level.best)
    profile = Profile.uniform(level.best.stages)
    factors = level.stages or [1.0] * level.best.stages
    layers = [
        replace(layer, forward_s=f, backward_s=2 * f, backward_input_s=f, backward_weight_s=f)
        for layer, f in zip(profile.layers, factors, strict=True)
    ]
    costs = Costs(replace(profile, layers=tuple(layers)), dict(enumerate(level.workers)))
    links = Level("link", level.best.worker_count, _NO_TIME, latency_s=level.link)
    return simulate(level.best, costs, cluster=Cluster("link", V100, (links,)))


def fewest_slots(level: Puzzle) -> float:
    """Return a lower bound on the makespan: heads, tails and a worker's work between them.

    A task cannot begin before its head, the longest chain of tasks that it needs, nor may less than
    its tail follow it.  Of any of a worker's tasks the earliest head, all their slots, and the
    least tail follow one another (Carlier, "The one-machine sequencing problem", 1982).
    """
    graph = level.best.dependencies
    frame = played(level).frame
    keys = ["worker", "op", "stage", "microbatch"]
    took = {tuple(row[:4]): row[5] - row[4] for row in frame[[*keys, "start_s", "end_s"]].values}
    seconds = [
        took.get((worker, task.op.name, task.stage, task.microbatch), task.op.slots)
        for worker, task in zip(graph.worker_of, graph.tasks, strict=True)
    ]
    makes = {
        (worker, task.stage, task.version): number
        for number, (worker, task) in enumerate(zip(graph.worker_of, graph.tasks, strict=True))
        if not task.op.is_pass
    }
    needs = [[*_needs(graph, n, level.link, makes)] for n in range(len(seconds))]
    order = [*Replay(graph).order()]
    heads, tails = [0.0] * len(seconds), [0.0] * len(seconds)
    for n in order:
        for need, delay in needs[n]:
            heads[n] = max(heads[n], heads[need] + seconds[need] + delay)
    for n in reversed(order):
        for need, delay in needs[n]:
            tails[need] = max(tails[need], tails[n] + seconds[n] + delay)
    least = max(map(sum, zip(heads, seconds, tails, strict=True)))
    for first, stop in pairwise(graph.first):
        own = [n for n in range(first, stop) if not graph.tasks[n].op.stream]
        for head, tail in product({heads[n] for n in own}, {tails[n] for n in own}):
            work = sum(seconds[n] for n in own if heads[n] >= head and tails[n] >= tail)
            least = max(least, (head + work + tail) * bool(work))
    return least


def _needs(
    graph: Dependencies, number: int, link: float, makes: Mapping[tuple[int, int, int], int]
) -> Iterator[tuple[int, float]]:
    """Yield the tasks that one waits for, and how long their messages take."""
    task = graph.tasks[number]
    if not task.op.is_pass:
        yield from ((each, 0.0) for each in graph.summed(number))
        return
    if made := makes.get((graph.worker_of[number], task.stage, task.version)):
        yield made, 0.0
    if graph.own[number] >= 0:
        yield graph.own[number], 0.0
    if (source := graph.source[number]) >= 0:
        yield source, link * (graph.worker_of[source] != graph.worker_of[number])
