"""Chimera, DualPipe, ZB-V, V-Half and V-Min: the papers' figures, code and closed forms."""

from collections import Counter
from collections.abc import Callable

import pytest

from pipekit import schedules
from pipekit.schedules import OPS, Op, Schedule, ScheduleError, parse, slots
from tests.schedules.timing import Costs, every_costs, makespan, peaks, spans


def test_four_workers_and_four_microbatches() -> None:
    """Figure 3: microbatches 0 and 1 go down, 2 and 3 up."""
    assert schedules.chimera(4, 4).take(1) == parse("""
        worker 0         | F0 F1 . F2@3 B2@3 F3@3 B3@3 B0 . B1^@3^3
        worker 1         | . F0 F2@2 F1 F3@2 B2@2 B0 B3@2 B1^@2^3
        worker 2 stage 1 | . F2 F0@2 F3 F1@2 B0@2 B2 B1@2 B3^3@2^
        worker 3 stage 0 | F2 F3 . F0@3 B0@3 F1@3 B1@3 B2 . B3^3@3^
        """)


@pytest.mark.parametrize("d", [2, 4, 6, 8])
def test_idle_over_total_and_activations(d: int) -> None:
    """(D-2)/(2N+D-2) if B = F, also for more units; (D-2)/(3N/2+D-2) if B = 2 F, at N = D only."""
    equal, double = Costs(1, 1, 0), Costs(1, 1, 1)  # a backward is whole: both parts together
    for units in (1, 2, 3):
        n = units * d
        schedule = schedules.chimera(d, n).take(1)
        idle = 1 - 2 * n / makespan(schedule, equal)
        assert idle == pytest.approx((d - 2) / (2 * n + d - 2))
        slower = 1 - 3 * n / makespan(schedule, double)
        formula = (d - 2) / (3 * n / 2 + d - 2)
        assert slower == pytest.approx(formula) if units == 1 or d == 2 else slower > formula
        half = [d // 2 + 1 + w for w in range(d // 2)]
        assert peaks(schedule) == (*half, *reversed(half))


def idle(p: int, m: int, costs: Costs, overlapped: float) -> float:
    """The most that a worker idles in the makespan, if F and B together take ``overlapped``."""
    f, i, w = costs
    schedule, overlap = schedules.dualpipe(p, m).take(1), overlapped / costs.work
    durations = {Op.FORWARD: f, Op.BACKWARD: i + w, Op.BACKWARD_INPUT: i, Op.BACKWARD_WEIGHT: w}
    times = slots(schedule, durations, overlap)
    busy = min((each[:, 1] - each[:, 0]).sum() for each in times)
    return float(makespan(schedule, costs, overlap) - busy)


def letters(schedule: Schedule, worker: int, count: int) -> str:
    """A worker's first passes, with 0 for the stage that it begins with and 1 for the other."""
    tasks = schedule.workers[worker][:count]
    return " ".join(f"{t.op.letter}{int(t.stage != tasks[0].stage)}" for t in tasks)


def test_the_phases_of_deepseeks_figure() -> None:
    """8 workers and 20 microbatches: the first row and the middle one of Figure 5."""
    schedule = schedules.dualpipe(8, 20).take(1)
    assert letters(schedule, 0, 17) == "F0 F0 F0 F0 F0 F0 F0 F1 I1 W1 F1 I1 W1 F1 I1 W1 F1"
    assert letters(schedule, 3, 11) == "F0 F1 F0 F1 F0 F1 F0 F1 F0 B1 F1"
    assert Counter(task.op for task in schedule.workers[0])[Op.BACKWARD_WEIGHT] == 7
    graph = schedule.dependencies
    pairs = Counter(graph.worker_of[n] for n, other in enumerate(graph.partner) if other > n)
    # DeepSeek's code: 2 (r + 3) of rank r's main phase, of which the middle one lacks one, and 3 - r
    half = [9, 10, 11, 12 - 1]
    assert [pairs[worker] for worker in range(8)] == half + half[::-1]


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_half_of_the_microbatches_go_each_way_and_every_stage_has_two_copies(p: int) -> None:
    m = 2 * p + 2
    schedule = schedules.dualpipe(p, m).take(1)
    assert schedule.stage_workers == tuple(tuple(sorted((s, p - 1 - s))) for s in range(p))
    for worker, tasks in enumerate(schedule.workers):
        down = {t.microbatch for t in tasks if t.op is Op.FORWARD and t.stage == worker}
        assert down == set(range(m // 2))
    assert peaks(schedule) == (p + 1,) * p


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_the_bubble(p: int) -> None:
    """(p/2 - 1)(F&B + F - 2 W) of the makespan, if W <= I <= F.

    DeepSeek prints (p/2 - 1)(F&B + B - 3 W) with B the whole backward, I + W: the same if I = F,
    as its figure has it; with I < F it is too little, and with I > F it is too much.
    """
    found = 0
    for m in (2 * p, 2 * p + 4):
        for costs in every_costs():
            f, i, w = costs
            for overlapped in (costs.work, max(f, i + w)):
                if w > i:
                    continue
                found += 1
                ours = (p / 2 - 1) * (overlapped + f - 2 * w)
                theirs = (p / 2 - 1) * (overlapped + (i + w) - 3 * w)
                real = idle(p, m, costs, overlapped)
                if i <= f:
                    assert real == pytest.approx(ours)
                    assert real >= theirs - 1e-9
                else:
                    assert ours - 1e-9 <= real <= theirs + 1e-9
    assert found == 72


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_dualpipe_v_is_one_half_of_dualpipe_folded(p: int) -> None:
    m = 2 * p + 3
    folded, whole = schedules.dualpipe_v(2 * p, m).take(1), schedules.dualpipe(2 * p, 2 * m).take(1)
    for w in range(p):
        one = [(t.op, t.stage) for t in folded.workers[w] if t.op is not Op.UPDATE]
        other = [(t.op, t.stage) for t in whole.workers[w] if t.op is not Op.UPDATE]
        assert one == other
    assert len(folded.overlaps) == len(whole.overlaps) // 2


V_SHAPED = [schedules.zb_v, schedules.v_half, schedules.v_min]


def test_zb_v_of_two_workers() -> None:
    assert schedules.zb_v(4, 4).take(1) == parse("""
        worker 0 | F0 F1   F2   F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 F3 I0 W0 F2@3 I2@3 W2@3 I1 W1 F3@3 I3@3 W3@3 I2 W2 I3 W3^@3^
        worker 1 | .  F0   F0@2 F1   F1@2 I0@2 W0@2 F2   I0   W0 F2@2 I1@2 W1@2 F3 I1 W1 F3@2 I2@2 W2@2 I2 I3@2 I3 W2 W3@2 W3^@2^
        """)


def test_v_min_of_two_workers() -> None:
    """The activations of two microbatches, as few as any two workers need."""
    assert schedules.v_min(4, 2).take(1) == parse("""
        worker 0 | F0 F1 .    F0@3 I0@3 F1@3 I1@3 I0   W0@3 I1 W1@3 W0   W1^@3^
        worker 1 | .  F0 F0@2 F1   F1@2 I0@2 I0   I1@2 I1 W0@2 W0   W1@2 W1^@2^
        """)


@pytest.mark.parametrize("method", V_SHAPED)
def test_the_last_worker_has_two_stages_in_a_row(method: Callable[[int, int], Schedule]) -> None:
    assert method(8, 8).stage_workers == ((0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,))


@pytest.mark.parametrize("p", range(1, 13))
def test_whole_microbatches_of_activations(p: int) -> None:
    """p of ZB-V, floor((p+2)/2) of V-Half, floor((p+4)/3) of V-Min; a pass has half a stage's."""
    for m in (2 * p, 3 * p + 1):
        assert max(peaks(schedules.zb_v(2 * p, m).take(1))) == 2 * p
        assert max(peaks(schedules.v_half(2 * p, m).take(1))) == 2 * ((p + 2) // 2) if p > 1 else 2
        assert max(peaks(schedules.v_min(2 * p, m).take(1))) == 2 * ((p + 4) // 3)


@pytest.mark.parametrize("p", range(1, 9))
def test_spans_in_equal_slots(p: int) -> None:
    """No bubble in ZB-V's spans; about a half and two thirds of 1F1B's 6 (p - 1) in the others."""
    for m in (2 * p, 4 * p):
        whole, half, least = (method(2 * p, m).take(1) for method in V_SHAPED)
        assert spans(whole) == [6 * m] * p
        assert makespan(whole) == 6 * m + p - 1
        assert max(spans(half)) <= 6 * m + 3 * (p - 1)
        assert max(spans(least)) <= 6 * m + 4 * (p - 1)


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("method", V_SHAPED)
def test_fewer_microbatches_than_fill_it(method: Callable[[int, int], Schedule], p: int) -> None:
    for m in range(1, 2 * p):
        schedule = method(2 * p, m).take(1)
        assert max(peaks(schedule)) <= 2 * min(m, p)
        counts = {op: sum(t.op is op for t in schedule.workers[0]) for op in OPS}
        assert counts[Op.FORWARD] == counts[Op.BACKWARD_WEIGHT] == 2 * m


@pytest.mark.parametrize(
    ("method", "stages", "m", "says"),
    [
        (schedules.chimera, 3, 4, "one stage more or less, or flush"),
        *((schedules.dualpipe, *each, "use an even number") for each in ((3, 8), (4, 6), (4, 9))),
        *((v, 5, 4, r"use an even number of stages, not 5 \(one stage a") for v in V_SHAPED),
    ],
)
def test_counts_that_do_not_go_both_ways_are_refused(
    method: Callable[[int, int], Schedule], stages: int, m: int, says: str
) -> None:
    with pytest.raises(ScheduleError, match=says):
        method(stages, m)
