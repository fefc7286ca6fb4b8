"""Sharded weights: who has whose when; tests/schedules/formats holds the tables against torch's."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipekit import Pipeline, Profile, simulate, simulation
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile
from pipekit.schedules import (
    DISCARD,
    GATHER,
    SUM,
    Op,
    Schedule,
    ScheduleError,
    Task,
    check,
    flush,
    looped_bfs,
    parse,
    read_csv,
    replicate,
    sharded,
    sharded_bfs,
    two_bw,
    weipipe,
)
from pipekit.schedules.transfers import (
    RECEIVE_GRADIENTS,
    RECEIVE_WEIGHTS,
    SEND_GRADIENTS,
    SEND_WEIGHTS,
)
from pipekit.simulation.costs import Shards
from pipekit.traces import Trace
from tests.schedules.methods.test_all_methods import METHODS
from tests.schedules.reference import refusal
from tests.schedules.strategies import Lists, Slip, drop, slipped
from tests.schedules.timing import Costs, makespan


def test_breadth_first_gathers_each_stage_twice_a_batch() -> None:
    assert (
        sharded_bfs(6, 2, workers=2).take(1).workers[0]
        == parse("""
        worker 0 | ./G0/G0@2 F0 F1/D1/G0@4 F0@2 F1@2 F0@4 F1@4 B0@4 - B1@4 -/S1@4/D1@4/G0 B0@2 - B1@2 -/S1@2/D1@2 B0 - B1 -/S1/D1^@4^@2^
        """).workers[0]
    )


@given(st.sampled_from(sorted(METHODS)), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
def test_any_method_that_flushes_can_be_sharded(name: str, p: int, m: int, gathered: int) -> None:
    """No pass is without its weights, no worker has more than asked for, no gradient is left out."""
    plain = METHODS[name](p, m).take(1)
    schedule = sharded(plain, gathered)
    check(schedule, joint_updates=True)
    assert sharded(METHODS[name](p, m), gathered).take(1) == schedule
    for tasks, before in zip(schedule.workers, plain.workers, strict=True):
        assert tuple(t for t in tasks if t.op not in (GATHER, DISCARD, SUM)) == before
        here: set[int] = set()
        summed: set[int] = set()
        for task in tasks:
            if task.op is GATHER:
                assert task.stage not in here
                here.add(task.stage)
            elif task.op is DISCARD:
                here.remove(task.stage)
            elif task.op is SUM:
                summed.add(task.stage)
            elif task.op is Op.UPDATE:
                assert task.stage in summed
            else:
                assert task.stage in here
                assert not (task.op.adds_gradient and task.stage in summed)
            assert len(here) <= gathered + bool(plain.overlaps)
        assert not here
    assert parse(str(schedule)) == schedule == read_csv(schedule.to_csv())


def test_gathers_hide_behind_passes_as_long_as_their_links_let_them() -> None:
    """A stage's forward of 8 microbatches takes 8 s: beside it the next stage's weights come in."""
    profile = Profile.uniform(6, parameter_bytes=60)
    made = sharded_bfs(6, 8, workers=2)

    def end(seconds: float) -> float:
        shards = Shards(4, 60 * 3 / 4 / seconds)
        run = simulate(made, simulation.Costs(profile, shards=shards), batches=1)
        return float(run.frame["end_s"].max())

    ideal = makespan(looped_bfs(6, 8, workers=2).take(1))
    first_and_last = 2  # no pass is there to hide the first gather and the last sum
    assert end(4) == pytest.approx(ideal + 4 * first_and_last)
    assert end(16) > ideal + 16 * first_and_last


def test_a_worker_has_two_stages_weights_and_a_share_of_the_others() -> None:
    profile = Profile.uniform(8, parameter_bytes=40)
    costs = simulation.Costs(profile, shards=Shards(4, 1e9))
    run = simulate(sharded_bfs(8, 4, workers=2), costs, batches=1)
    assert run.memory is not None
    held = run.memory.frame.groupby("worker")["weights"].max()
    assert held.to_list() == [2 * 40 + 2 * 10] * 2


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (two_bw(2, 2), r"reads weight versions \[0, 1"),
        (replace(flush(2, 2).take(1), head=((), ())), "reads weight versions"),
    ],
)
def test_what_is_no_batch_is_refused(schedule: Schedule, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        sharded(schedule)


def test_a_gather_is_of_the_version_that_its_passes_read() -> None:
    broken = [*sharded(flush(1, 1)).take(2).workers[0]]
    place = next(n for n, task in enumerate(broken) if task.op is GATHER and task.version == 1)
    del broken[place]
    with pytest.raises(ScheduleError, match="F1 of stage 0, which needs weights there, and D0"):
        check(Schedule((tuple(broken),)))


F, B = Op.FORWARD, Op.BACKWARD
WAITS = {RECEIVE_WEIGHTS.base_name: "weights", RECEIVE_GRADIENTS.base_name: "gradients"}
COUNTS = [(p, p * rounds) for p in range(2, 9) for rounds in (1, 2) if p * rounds <= 16]


def home(stage: int, workers: int) -> int:
    return (stage + 1) % workers


def item(task: Task) -> tuple[int, bool]:
    """Return the stage of the weights that a task moves, or of the sum of gradients."""
    return task.stage, task.op is Op.UPDATE or "GRADIENTS" in task.op.name


def is_sound(schedule: Schedule) -> bool:
    """Play one batch, a task at a time: each stream of a worker in order, letters between them.

    A task waits for all before it in its worker's list that compute, are on its own stream, or move
    its item.  A worker has a copy for each that it has received and not given up; it computes only
    on a copy.  All that is written is read, and the update has the gradient of each microbatch once.
    """
    p, m = schedule.worker_count, schedule.microbatches
    letters: dict[tuple[object, ...], deque[Counter[int]]] = defaultdict(deque)
    copies = Counter((home(stage, p), stage) for stage in range(p))
    sums: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    left = [[*tasks] for tasks in schedule.workers]
    moved = True
    while moved:
        moved = False
        for worker, tasks in enumerate(left):
            waiting: list[Task] = []
            for task in tasks:
                op, stage, k, _ = task
                here, name = (worker, stage), op.base_name
                into = letters[WAITS.get(name), op.peer, worker, stage]
                if (name in WAITS and not into) or any(
                    other.op.stream in ("", op.stream) or item(other) == item(task)
                    for other in waiting
                ):
                    waiting.append(task)
                    continue
                if name == RECEIVE_WEIGHTS.base_name:
                    into.popleft()
                    copies[here] += 1
                elif name == RECEIVE_GRADIENTS.base_name:
                    sums[here] += into.popleft()
                elif name == SEND_GRADIENTS.base_name:
                    letters["gradients", worker, op.peer, stage].append(sums.pop(here, Counter()))
                elif op is Op.UPDATE:
                    if sums.pop(here, Counter()) != Counter(range(m)):
                        return False
                elif not copies[here]:
                    return False
                elif name == SEND_WEIGHTS.base_name:
                    letters["weights", worker, op.peer, stage].append(Counter())
                elif op is DISCARD:
                    copies[here] -= 1
                elif op is B:
                    sums[here][k] += 1
                moved = True
            left[worker] = waiting
    return not any(left) and not any(letters.values())


def test_in_each_turn_a_backward_and_the_next_forward() -> None:
    cells = [(t.op.letter, t.stage, t.microbatch) for t in weipipe(2, 4).take(1).workers[1]]
    assert [f"{letter}{k}@{s}" for letter, s, k in cells if letter in "FB"] == (
        ["F1@0", "F1@1", "B1@1", "F3@0", "B1@0", "F3@1", "B3@1", "B3@0"]
    )


@pytest.mark.parametrize(("p", "m"), COUNTS)
def test_it_is_sound_and_idles_the_longer_pass_for_each_worker_behind(p: int, m: int) -> None:
    """With free links; 1F1B idles both passes for each."""
    one = weipipe(p, m).take(1)
    check(weipipe(p, m))
    for several in (weipipe(p, m), replicate(weipipe(p, m), 2)):
        check(several.take(2), joint_updates=True)
    assert is_sound(one)
    for forward, backward in ((1, 2), (2, 1), (2, 3)):
        idle = (p - 1) * max(forward, backward)
        assert makespan(one, Costs(forward, backward, 0)) == m * (forward + backward) + idle
    assert one.stage_workers == tuple((home(stage, p),) for stage in range(p))
    assert check(one).peak_versions == (1,) * p
    assert check(one).peak_in_flight == (p,) * p
    assert parse(str(one)) == one == read_csv(one.to_csv())


@pytest.mark.parametrize(("p", "m"), COUNTS)
def test_each_pass_has_its_weights_from_the_worker_before(p: int, m: int) -> None:
    """So a turn takes two stages' weights and one stage's gradients of each worker at most."""
    for worker, tasks in enumerate(weipipe(p, m).take(1).workers):
        names = Counter(task.op.base_name for task in tasks)
        away = [t for t in tasks if t.op in (F, B) and home(t.stage, p) != worker]
        assert names["RECEIVE_WEIGHTS"] == len(away) == names["RESHARD"]
        assert names["SEND_GRADIENTS"] <= sum(task.op is B for task in tasks) == m
        peers = {t.op.peer for t in tasks if t.op.base_name in WAITS}
        assert peers <= {(worker - 1) % p, p - 1} or not worker


LAYER = LayerProfile("stage", 1.0, 2.0, saved_bytes=8, saves_output=True, parameter_bytes=100)


def run(p: int, m: int, bandwidth: float, output_bytes: float = 4) -> Trace:
    layers = (replace(LAYER, output_bytes=output_bytes),) * p
    return simulate(weipipe(p, m), Profile(layers), None, flat(p, bandwidth), batches=1)


def test_longer_sequences_send_no_more() -> None:
    short, long = (run(4, 8, 200, size).transfers for size in (4, 4000))
    assert short is not None
    assert long is not None
    assert short["bytes"].sum() == long["bytes"].sum()
    moved = short[short["purpose"].str.startswith("receive")]
    assert set(moved["bytes"]) == {100}
    assert len(moved) <= 3 * 4 * 8  # two of weights and one of gradients, a pass and backward


@pytest.mark.parametrize("p", [2, 3, 4])
def test_transfers_hide_behind_passes_twice_as_long(p: int) -> None:
    ends = [run(p, rounds * p, bandwidth=200).makespan_s for rounds in (4, 5)]
    assert ends[1] - ends[0] == pytest.approx(3 * p)


def test_memory_is_a_stage_and_the_copies_on_their_way() -> None:
    """Its own, one or two that it computes on, and those that are received and sent meanwhile."""
    memory = run(4, 8, bandwidth=200).memory
    assert memory is not None
    held = memory.frame.groupby("worker")
    assert held["weights"].last().tolist() == [100] * 4
    assert held["weights"].max().between(300, 500).all()
    assert held["gradients"].last().tolist() == [0] * 4
    assert held["gradients"].max().between(200, 400).all()


def swap_neighbours(data: st.DataObject, lists: Lists) -> None:
    """Of tasks that are farther apart, the judge waits for more than ``check`` does."""
    tasks = data.draw(st.sampled_from(lists))
    place = data.draw(st.integers(0, len(tasks) - 2))
    tasks[place : place + 2] = reversed(tasks[place : place + 2])


@given(st.sampled_from([2, 3]), st.sampled_from([drop, swap_neighbours]), st.data())
def test_damaged_tables_are_refused_where_the_judge_finds_a_fault(
    p: int, slip: Slip, data: st.DataObject
) -> None:
    damaged = slipped(data, weipipe(p, 2 * p).take(1), slip)
    assert refusal(lambda: check(damaged)) is not None or is_sound(damaged)


def without(number: int, name: str) -> Callable[[], object]:
    """Return a check of a table that lacks the task of an op with such a number on worker 1."""
    one = weipipe(2, 2).take(1)
    mine = [*one.workers[1]]
    del mine[[n for n, task in enumerate(mine) if task.op.base_name == name][number]]
    return lambda: check(replace(one, head=(one.workers[0], tuple(mine))))


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (without(0, "SEND_WEIGHTS"), r"worker 0 has A0>1 of stage 0, which needs weights from its"),
        (without(0, "RECEIVE_WEIGHTS"), r"worker 1 has B1 of stage 1, which needs weights there"),
        (without(0, "RECEIVE_GRADIENTS"), "worker 0 has H0>1 of stage 1, and worker 1 takes no"),
        (without(-1, "SEND_GRADIENTS"), r"worker 0 has C1>1 of stage 1, which needs gradients"),
        (lambda: weipipe(1, 1), "as many workers as stages, two or more"),
        (lambda: weipipe(3, 4), "use a multiple of them, not 4 microbatches on 3"),
    ],
)
def test_a_task_without_its_other_end_is_refused(refused: Callable[[], object], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        refused()


def test_a_gradient_that_stays_behind_is_refused() -> None:
    unsent = [[t for t in tasks if "GRADIENTS" not in t.op.name] for tasks in weipipe(2, 2).period]
    late = [*map(list, weipipe(3, 3).period)]
    place = next(n for n, task in enumerate(late[1]) if task.op is B)
    late[1].insert(place + 2, late[1].pop(place))  # behind what it receives, adds to and sends
    for lists, number in ((unsent, "[01]"), (late, "1")):
        with pytest.raises(ScheduleError, match=f"gradient of microbatch {number} has not been"):
            check(Schedule(tuple(map(tuple, lists))))


def test_the_engine_refuses_it_when_the_pipeline_is_built() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    sgd = partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(
        ScheduleError, match=r"RECEIVE_WEIGHTS_1\), which Pipeline cannot run: draw"
    ):
        Pipeline(model, weipipe(2, 2), optimizer=sgd, loss=nn.MSELoss())
