"""Which weight versions passes read where batches follow one another without a flush.

A worker then begins a batch's forwards before the last one's backwards are done, and pays for it
with memory: a version is kept until its last reader is through.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from pipekit.schedules import Op, Schedule, pipedream, two_bw
from pipekit.schedules.schedule import Pass
from pipekit.schedules.task import Task

Versions = Literal["1", "2bw", "pipedream"]
"""One version, with a flush behind each batch; 2BW's, W(t+1) = W(t) - nu grad f(W(t-1)); or
PipeDream's, with an update a minibatch, and stage s reading W_s(t-d_s+1), d_s being its depth."""


class WeightReads(NamedTuple):
    """Which weights are read."""

    # for each stage and microbatch, how many microbatches' gradients they have summed
    summed: tuple[tuple[int, ...], ...]
    microbatches: int  # that an update sums

    @property
    def copies(self) -> list[int]:
        """How many versions of each stage's weights there are at most at once.

        A version lives until its last reader's backward, and each stage adds its gradients in the
        order of the microbatches.
        """
        m = self.microbatches
        return [max(k // m - read // m + 1 for k, read in enumerate(row)) for row in self.summed]

    def are_read_by(self, schedule: Schedule) -> bool:
        """Return whether all passes of a schedule read these."""
        return all(
            task.version == self.summed[task.stage][task.microbatch] // self.microbatches
            for tasks in schedule.workers
            for task in tasks
            if task.op.is_pass
        )


def require_versions(versions: Sequence[str], microbatches: int) -> None:
    """Raise for what is no rule, or cannot be had with so many microbatches a batch."""
    for each in versions:
        if each not in get_args(Versions):
            raise ValueError(f"versions are {', '.join(get_args(Versions))}, not {each!r}")
    if "pipedream" in versions and microbatches != 1:
        raise ValueError(
            f"PipeDream updates after each minibatch: use microbatches=1 and as many batches as "
            f"minibatches, or versions='2bw' for batches of {microbatches} microbatches"
        )


def by_2bw(stages: int, microbatches: int, batches: int) -> WeightReads:
    """Return what 2BW reads: weights that have summed all batches but the last before its own."""
    each = range(microbatches * batches)
    row = tuple(max(k // microbatches - 1, 0) * microbatches for k in each)
    return WeightReads((row,) * stages, microbatches)


def by_pipedream(depths: Sequence[int], minibatches: int) -> WeightReads:
    """Return what is read where stage ``s`` has ``depths[s]`` minibatches in flight."""
    each = range(minibatches)
    return WeightReads(tuple(tuple(max(k - depth + 1, 0) for k in each) for depth in depths), 1)


def depths(stages: int, workers: int, minibatches: int) -> Iterator[tuple[int, ...]]:
    """Yield PipeDream's in-flight counts to try: the paper's, more for links, less for memory."""
    straight = [(stages - stage) * workers / stages for stage in range(stages)]
    found = [tuple(max(1, round(times * each)) for each in straight) for times in (1, 0.5, 1.5)]
    found.append(tuple(max(1, round(2 * each) - 1) for each in straight))
    yield from dict.fromkeys(tuple(min(d, minibatches) for d in each) for each in found)


def named_with(
    versions: Versions, stages: int, workers: int, microbatches: int, batches: int
) -> Iterator[Schedule]:
    """Yield the named methods without a flush that have these counts."""
    if stages != workers:
        return
    if versions == "2bw" and microbatches >= stages:
        yield two_bw(stages, microbatches).take(batches)
    if versions == "pipedream":
        yield pipedream(stages).take(batches)
        deeper = [2 * (stages - stage) - 1 for stage in range(stages)]
        yield pipedream(stages, in_flight=deeper).take(batches)


def stream(name: str, workers: Sequence[Sequence[Pass]], reads: WeightReads) -> Schedule:
    """Return the table of batches that follow one another."""
    m = reads.microbatches

    def worker(passes: Sequence[Pass]) -> Iterator[Task]:
        for op, stage, k in passes:
            yield Task(op, stage, k, reads.summed[stage][k] // m)
            if op.adds_gradient and (k + 1) % m == 0:
                yield Task(Op.UPDATE, stage, k, (k + 1) // m)

    return Schedule(tuple(tuple(worker(passes)) for passes in workers), name)
