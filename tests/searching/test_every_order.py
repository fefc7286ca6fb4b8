"""What is found for few passes is compared with all orders there are, tried one after another."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

import pytest

from pipekit import search, simulate
from pipekit.clusters import Cluster, flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, ScheduleError, check
from pipekit.schedules.schedule import Pass
from pipekit.searching.question import Question

Cost = tuple[int, int, int, int]
"""Seconds of a stage's F, I, W and B."""


def profile(costs: Sequence[Cost], saved: Sequence[int]) -> Profile:
    layers = tuple(
        LayerProfile(
            f"layer {n}",
            forward_s=f,
            backward_s=b,
            backward_input_s=i,
            backward_weight_s=w,
            output_bytes=1,
            saved_bytes=bytes_,
            saves_output=True,
            input_only_bytes=1,
            parameter_bytes=n,
        )
        for n, ((f, i, w, b), bytes_) in enumerate(zip(costs, saved, strict=True))
    )
    return Profile(layers, input_bytes=1)


def every_order(stages: Sequence[int], microbatches: int) -> Iterator[tuple[Pass, ...]]:
    """Yield all orders of a worker's passes, with every backward whole or in two parts."""
    own = [(stage, k) for stage in stages for k in range(microbatches)]
    split, whole = (Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT), (Op.FORWARD, Op.BACKWARD)
    for chosen in product([split, whole], repeat=len(own)):
        chains = [[(op, *each) for op in ops] for each, ops in zip(own, chosen, strict=True)]
        whose = [number for number, chain in enumerate(chains) for _ in chain]
        for order in set(permutations(whose)):
            following = [iter(chain) for chain in chains]
            yield tuple(next(following[number]) for number in order)


def makespan(rows: Sequence[Sequence[Pass]], costs: Sequence[Cost], delay: int) -> float:
    """Return when the last pass ends; infinite if workers wait for one another."""
    place = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2, Op.BACKWARD: 3}
    sent: dict[tuple[bool, int, int], int] = {}
    queues = [list(row) for row in rows]
    home = {each[1]: worker for worker, row in enumerate(rows) for each in row}
    now = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for worker, queue in enumerate(queues):
            while queue:
                op, stage, k = queue[0]
                back = op is not Op.FORWARD
                source = stage + 1 if back else stage - 1
                start = now[worker]
                if op is not Op.BACKWARD_WEIGHT and 0 <= source < len(costs):
                    if (back, source, k) not in sent:
                        break
                    waits = 0 if home[source] == worker else delay
                    start = max(start, sent[back, source, k] + waits)
                now[worker] = start + costs[stage][place[op]]
                if op is not Op.BACKWARD_WEIGHT:
                    sent[back, stage, k] = now[worker]
                queue.pop(0)
                moved = True
    return math.inf if any(queues) else max(now)


def most_bytes(row: Sequence[Pass], layers: Sequence[LayerProfile]) -> float:
    """Return the most bytes of a worker: its weights, gradients and activations."""
    held = sum(layers[stage].parameter_bytes for stage in {stage for _, stage, _ in row})
    most, begun = held, set()
    for op, stage, _ in row:
        layer = layers[stage]
        kept = layer.saved_bytes + 1  # with its input
        freed = {
            Op.FORWARD: -kept,
            Op.BACKWARD_INPUT: layer.input_only_bytes,
            Op.BACKWARD_WEIGHT: kept - layer.input_only_bytes,
            Op.BACKWARD: kept,
        }[op]
        if op in (Op.BACKWARD, Op.BACKWARD_WEIGHT) and stage not in begun:
            begun.add(stage)
            within = layer.saved_bytes - (layer.input_only_bytes if op is not Op.BACKWARD else 0)
            most = max(most, held + max(0, layer.parameter_bytes - within))
            held += layer.parameter_bytes
        held -= freed
        most = max(most, held)
    return most


CASES = [
    (2, 2, (0, 1)),
    (1, 2, (0, 1, 1, 0)),
    (1, 2, (0, 1, 0, 1)),
    (1, 1, (0, 0)),
    (1, 3, (0, 1, 2)),
]
"""Microbatches, workers, and the worker of each stage."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("number", range(len(CASES)))
def test_nothing_is_better_than_what_is_found(number: int, seed: int) -> None:
    microbatches, workers, homes = CASES[number]
    chance = random.Random(100 * number + seed)
    costs = []
    for _ in homes:
        f, i, w = (chance.randint(1, 4) for _ in range(3))
        costs.append((f, i, w, chance.randint(max(1, i + w - 2), i + w)))
    model = profile(costs, [chance.randint(1, 3) for _ in homes])
    delay = chance.randint(0, 1)
    links: Cluster | None = flat(workers, 1.0) if delay else None
    own = [[s for s, home in enumerate(homes) if home == w] for w in range(workers)]
    rows = [list(every_order(stages, microbatches)) for stages in own]
    needs = [[most_bytes(row, model.layers) for row in each] for each in rows]
    cap = chance.choice(sorted({each for row in needs for each in row}))
    able = [
        [row for row, need in zip(each, needed, strict=True) if need <= cap]
        for each, needed in zip(rows, needs, strict=True)
    ]
    shortest = min((makespan(each, costs, delay) for each in product(*able)), default=math.inf)
    plan = Plan.by_hand([1] * len(homes))
    how: Any = {"microbatches": microbatches, "workers": workers, "placement": homes}
    if shortest == math.inf:
        with pytest.raises(ScheduleError, match="no schedule was found that fits"):
            search(model, plan, links, cap, **how)
        return
    found = search(model, plan, links, cap, **how, seconds=0.5).schedule
    check(found, joint_updates=True)
    trace = simulate(found, model, plan, links)
    assert trace.memory is not None
    assert max(trace.memory.peak_bytes) <= cap
    assert trace.makespan_s == shortest
    asked = Question(model, plan, links, cap, workers, microbatches, placement=homes)
    assert asked.least_s <= shortest * (1 + 1e-9)
