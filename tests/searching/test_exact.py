"""What is proved to be the best is compared with all orders there are, tried one after another."""

import math
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest

from pipekit import simulate
from pipekit.clusters import Cluster, flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, check
from pipekit.schedules.methods.flushed import flushed
from pipekit.schedules.schedule import Pass
from pipekit.searching import optimal
from pipekit.searching.bound import bound
from pipekit.searching.exact import solve
from pipekit.searching.judge import Judge

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


def ends(
    rows: Sequence[Sequence[Pass]], costs: Sequence[Cost], delay: int, batches: int
) -> list[int] | None:
    """Return when each batch ends, or None if workers wait for one another."""
    place = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2, Op.BACKWARD: 3}
    sent: dict[tuple[bool, int, int, int], int] = {}
    queues = [[(t, each) for t in range(batches) for each in row] for row in rows]
    home = {each[1]: worker for worker, row in enumerate(rows) for each in row}
    now, done = [0] * len(rows), [0] * batches
    moved = True
    while moved:
        moved = False
        for worker, queue in enumerate(queues):
            while queue:
                t, (op, stage, k) = queue[0]
                back = op is not Op.FORWARD
                source = stage + 1 if back else stage - 1
                start = now[worker]
                if op is not Op.BACKWARD_WEIGHT and 0 <= source < len(costs):
                    if (back, source, k, t) not in sent:
                        break
                    waits = 0 if home[source] == worker else delay
                    start = max(start, sent[back, source, k, t] + waits)
                now[worker] = start + costs[stage][place[op]]
                if op is not Op.BACKWARD_WEIGHT:
                    sent[back, stage, k, t] = now[worker]
                done[t] = max(done[t], now[worker])
                queue.pop(0)
                moved = True
    return None if any(queues) else done


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("number", range(len(CASES)))
def test_nothing_is_better_than_what_is_proved(number: int, seed: int) -> None:
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
    shortest: dict[str, float] = {"makespan": math.inf, "period": math.inf}
    for chosen in product(*able):
        batches = ends(chosen, costs, delay, 9)
        if batches is not None:
            shortest["makespan"] = min(shortest["makespan"], batches[0])
            shortest["period"] = min(shortest["period"], (batches[8] - batches[4]) / 4)
    judge = Judge(model, Plan.by_hand([1] * len(homes)), links, cap, workers, 0.0)
    problem = judge.problem(tuple((home,) * microbatches for home in homes))
    for objective in ("makespan", "period"):
        proof = solve(problem, objective, threads=1)
        assert proof.seconds == proof.bound_s == shortest[objective]
        if proof.orders is None:
            assert proof.bound_s == math.inf
            continue
        table = flushed("proved", problem.passes(proof.orders)).take(9)
        check(table, joint_updates=True)
        trace = simulate(table, model, judge.plan, links)
        assert trace.memory is not None
        assert max(trace.memory.peak_bytes) <= cap
        took = trace.frame[trace.frame["microbatch"] < microbatches]["end_s"].max()
        if objective == "makespan":
            assert took == proof.seconds
            assert bound(problem) <= proof.seconds * (1 + 1e-9)
        else:
            updates = trace.frame[trace.frame["op"] == "UPDATE"].groupby("version")["end_s"].max()
            assert (updates[9] - updates[5]) / 4 == proof.seconds


def test_the_schedule_is_simulated_to_take_what_is_proved() -> None:
    model = profile([(3, 3, 2, 5), (2, 3, 2, 5), (4, 4, 3, 6)], [2, 3, 2])
    plan = Plan.by_hand([1, 1, 1])
    found = optimal(model, plan, None, 9.0, microbatches=4, seconds=100)
    assert found.is_proved
    assert found.seconds == simulate(found.schedule, model, plan).makespan_s == found.bound_s
    loose = optimal(model, plan, None, microbatches=4, seconds=100)
    assert loose.seconds < found.seconds


def test_room_for_one_microbatch_makes_them_follow_one_another() -> None:
    """Each goes there and back, with both parts of the first stage's backward, before the next."""
    model, plan = Profile.uniform(2, 1.0, 2.0, output_bytes=1), Plan.by_hand([1, 1])
    found = optimal(model, plan, None, 2.0, microbatches=3, seconds=100)
    judge = Judge(model, plan, None, 2.0, 2, 0.0)
    assert found.seconds == bound(judge.problem(((0,) * 3, (1,) * 3))) == 3 * (1 + 1 + 1 + 2)


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="no order of these passes fits"):
        optimal(profile([(1, 1, 1, 2)] * 2, [2, 2]), Plan.by_hand([1, 1]), None, 2.0)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(ImportError, match=r"pip install 'pipekit\[search\]'"):
        optimal(profile([(1, 1, 1, 2)], [1]), Plan.by_hand([1]))
