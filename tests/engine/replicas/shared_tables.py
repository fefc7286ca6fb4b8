"""Tables whose stages are on several workers in any way: both directions, rings, at random.

Worker processes import this file, so that it stays free of pytest and hypothesis.
"""

import random
from collections.abc import Callable, Sequence

from pipekit.schedules import Op, Schedule, Task

Home = Callable[[int, int], int]
"""The worker of a microbatch's passes on a stage, from (stage, microbatch)."""
Pass = tuple[Op, int, int]


def table(
    home: Home,
    stages: int,
    microbatches: int,
    batches: int,
    choose: Callable[[Sequence[Pass]], Pass],
    late: Callable[[], bool] = lambda: True,
) -> Schedule:
    """A table that flushes after every batch.

    Args:
        home: where passes run.
        stages: how many.
        microbatches: of each batch.
        batches: how many.
        choose: of passes that can run, the one that comes next in its worker's list.
        late: asked at the last gradient of an update, whether it is made at the batch's end only.
    """
    numbers = range(microbatches * batches)
    workers = 1 + max(home(s, k) for s in range(stages) for k in numbers)
    homes = [sorted({home(s, k) for k in numbers}) for s in range(stages)]
    lists: list[list[Task]] = [[] for _ in range(workers)]

    def needs(each: Pass) -> list[Pass]:
        op, s, k = each
        return [(op, s - 1, k)] if op is Op.FORWARD else [(op, s + 1, k), (Op.FORWARD, s, k)]

    for t in range(batches):
        batch = numbers[microbatches * t : microbatches * (t + 1)]
        left = {
            (op, s, k) for op in (Op.FORWARD, Op.BACKWARD) for s in range(stages) for k in batch
        }

        def update(stage: int, last: int = batch[-1], version: int = t + 1) -> None:
            for worker in homes[stage]:
                lists[worker].append(Task(Op.UPDATE, stage, last, version))

        at_the_end = []
        while left:
            ready = [each for each in left if left.isdisjoint(needs(each))]
            op, s, k = choose(sorted(ready, key=lambda each: (each[0].letter, *each[1:])))
            left.remove((op, s, k))
            lists[home(s, k)].append(Task(op, s, k, t))
            if op is Op.BACKWARD and not any(b[:2] == (op, s) for b in left):
                if late():
                    at_the_end.append(s)
                else:
                    update(s)
        for s in at_the_end:
            update(s)
    return Schedule(tuple(map(tuple, lists)), "shared")


def two_directions(stages: int, microbatches: int, batches: int) -> Schedule:
    """Even microbatches go down the workers and odd ones up, as in Chimera and DualPipe."""

    def home(stage: int, k: int) -> int:
        return stages - 1 - stage if k % 2 else stage

    def backwards_first(ready: Sequence[Pass]) -> Pass:
        return min(ready, key=lambda each: (each[0] is Op.FORWARD, each[2], each[1]))

    return table(home, stages, microbatches, batches, backwards_first)


def down_then_up(stages: int, microbatches: int, batches: int) -> Schedule:
    """The first half of a batch goes down, and then the second half up: each end sums first."""

    def home(stage: int, k: int) -> int:
        return stage if k % microbatches < microbatches // 2 else stages - 1 - stage

    def half_by_half(ready: Sequence[Pass]) -> Pass:
        half = microbatches // 2
        return min(ready, key=lambda e: (e[2] % microbatches >= half, e[0] is Op.BACKWARD, e[2]))

    return table(home, stages, microbatches, batches, half_by_half)


def ring(stages: int, microbatches: int, batches: int) -> Schedule:
    """Each stage is on two workers, of which each has another one's in common."""

    def home(stage: int, k: int) -> int:
        return (stage + k % 2) % stages

    return table(home, stages, microbatches, batches, min_by_number)


def min_by_number(ready: Sequence[Pass]) -> Pass:
    """The lowest microbatch first."""
    return min(ready, key=lambda each: (each[2], each[0] is Op.BACKWARD))


def at_random(seed: int, batches: int = 3, early: float = 0.5) -> Schedule:
    """Any stages on any workers, some of which have no gradient for some updates.

    Args:
        seed: of the random choices.
        batches: how many.
        early: how likely an update is made before the end of its batch.
    """
    chance = random.Random(seed)
    stages, workers, microbatches = chance.randint(2, 4), chance.randint(2, 4), chance.randint(1, 5)
    homes = {
        (s, k): chance.randrange(workers)
        for s in range(stages)
        for k in range(microbatches * batches)
    }
    for worker in range(workers):  # none is idle
        homes[worker % stages, worker % microbatches] = worker
    used = sorted(set(homes.values()))
    return table(
        lambda s, k: used.index(homes[s, k]),
        stages,
        microbatches,
        batches,
        chance.choice,
        lambda: chance.random() >= early,
    )
