"""BPipe and PipeOffload: what lies with a partner or on the host, and that nothing is later."""

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from pipekit import Profile, simulate
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile
from pipekit.schedules import (
    LOAD,
    OFFLOAD,
    Op,
    Schedule,
    ScheduleError,
    bpipe,
    check,
    dualpipe,
    flush,
    gis,
    gpipe,
    offloaded,
    parse,
    pipe_offload,
    read_csv,
    recomputed,
    replicate,
    slots,
    zb_h1,
)
from pipekit.simulation.costs import Costs
from tests.sampled import sampled
from tests.schedules.reference import executable, key, ticking

QUICK = [(3, 3), (4, 4), (4, 9), (5, 7), (8, 8)]
WHOLE = [(p, m) for p in range(1, 9) for m in range(2, 17)]
cases = pytest.mark.parametrize(("p", "m"), [*QUICK, *sampled(WHOLE, 12)])


def taking(slots_each: float, workers: int) -> Mapping[Op, float]:
    """Return how long transfers take, to the host and to each worker."""
    peers = range(workers)
    ops = (OFFLOAD, LOAD, *(op.to(peer) for op in (OFFLOAD, LOAD) for peer in peers))
    return dict.fromkeys(ops, slots_each)


def end(schedule: Schedule, durations: Mapping[Op, float]) -> float:
    return max(float(each[:, 1].max()) for each in slots(schedule, {Op.UPDATE: 0, **durations}))


def passes(schedule: Schedule) -> Schedule:
    """Return a table without its transfers."""
    lists = tuple(
        tuple(t for t in tasks if t.op.base_name not in ("OFFLOAD", "LOAD"))
        for tasks in schedule.workers
    )
    return Schedule(lists, schedule.name)


def require_same_times(schedule: Schedule, plain: Schedule, durations: Mapping[Op, float]) -> None:
    """Require the passes, and the times, of the method without transfers, by a ticking clock."""
    assert passes(schedule) == plain
    assert executable(plain)
    ticks = ticking(plain)
    for tasks, times in zip(schedule.workers, slots(schedule, durations), strict=True):
        for task, each in zip(tasks, times.tolist(), strict=True):
            if task.op in (Op.FORWARD, Op.BACKWARD):
                assert tuple(each) == ticks[key(task)]


def test_four_stages_evict_two_microbatches_of_the_first() -> None:
    assert bpipe(4, 4).take(1) == parse("""
        worker 0 | F0 F1/O1>3 F2/O2>3 F3 . . . . . . B0 -/L1>3 . B1 -/L2>3 . B2 - . B3 -^
        worker 1 | . F0 F1 F2 . . . . B0 - F3 B1 - . B2 - . B3 -^
        worker 2 | . . F0 F1 . . B0 - F2 B1 - F3 B2 - . B3 -^
        worker 3 | . . . F0 B0 - F1 B1 - F2 B2 - F3 B3 -^
        """)


@cases
@pytest.mark.parametrize("transfer", [0.0, 0.5, 1.0])
def test_bpipe_takes_1f1bs_time_in_half_its_memory(p: int, m: int, transfer: float) -> None:
    """At most ceil((p + 2) / 2) activations, in transfers up to as long as a forward."""
    schedule, durations = bpipe(p, m).take(2), taking(transfer, p)
    check(schedule, joint_updates=True)
    require_same_times(schedule, flush(p, m).take(2), durations)
    assert max(peaks_over_time(schedule, durations)) <= (p + 3) // 2
    assert parse(str(schedule)) == schedule == read_csv(schedule.to_csv())


@cases
@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("transfer", [0.0, 1.0])
def test_offloading_costs_gis_no_time(p: int, m: int, share: int, transfer: float) -> None:
    """Half of its memory with half of the stages on the host, and four passes with all of them."""
    durations, plain = taking(transfer, 1), gis(2 * p, m, workers=p)
    schedule = offloaded(plain, range(share * p)).take(2)
    plain = plain.take(2)
    check(schedule, joint_updates=True)
    require_same_times(schedule, plain, durations)
    found, whole = (max(peaks_over_time(each, durations)) for each in (schedule, plain))
    assert found <= whole
    if p > 1 and m % p == 0:
        assert found <= (max(4, whole / 2) if share == 1 else 4)


@cases
@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("transfer", [0.0, 1.0])
def test_pipe_offload_is_as_table_1_says(p: int, m: int, v: int, transfer: float) -> None:
    """About p (v + 2) / 8 passes with half of the stages on the host; less idle than 1F1B."""
    durations = taking(transfer, 1)

    def table(share: int) -> Schedule:
        return pipe_offload(v * p, m, workers=p, offloaded_stages=share).take(1)

    plain, half, full = map(table, (0, (v + 1) // 2, v))
    assert half == pipe_offload(v * p, m, workers=p).take(1)
    assert end(half, durations) == end(full, durations) == end(plain, durations)
    assert end(plain, durations) <= v * end(flush(p, m).take(1), durations)
    assert max(peaks_over_time(half, durations)) <= p * (v + 2) / 8 + 3
    assert max(peaks_over_time(full, durations)) <= 4
    for schedule in half, full:
        check(schedule)
        assert passes(schedule).workers == plain.workers
        assert parse(str(schedule)) == schedule == read_csv(schedule.to_csv())


def test_four_workers_repeat_the_papers_block() -> None:
    """Slots of the authors' code (group_interleaved_1f1b.py), for four workers of two stages."""
    schedule = pipe_offload(8, 8, workers=4, offloaded_stages=0).take(1)
    for w, tasks in enumerate(schedule.workers):
        block = {(Op.FORWARD, w): w, (Op.FORWARD, 4 + w): 9 + w}
        for stage, back in ((4 + w, 19 - 2 * w), (w, 28 - 2 * w)):
            block |= {(Op.BACKWARD_INPUT, stage): back, (Op.BACKWARD_WEIGHT, stage): back + 1}
        at = {slot + 6 * k: (*each, k) for k in range(8) for each, slot in block.items()}
        assert [task[:3] for task in tasks if task.op.is_pass] == [at[slot] for slot in sorted(at)]


def test_slower_links_to_the_host_cost_memory_before_time() -> None:
    def run(transfer: float) -> tuple[float, int]:
        durations = taking(transfer, 1)
        schedule = offloaded(gis(16, 16, workers=8), range(8)).take(1)
        return end(schedule, durations), max(peaks_over_time(schedule, durations))

    fast, slow, slowest = map(run, (1, 2, 4))
    assert fast == (117, 8)
    assert slow[0] == 117 < slowest[0]
    assert fast[1] < slow[1] < slowest[1] < 16


def test_no_transfer_parts_what_runs_together() -> None:
    plain = dualpipe(4, 16).take(1)
    schedule = offloaded(plain, [0, 1])
    check(schedule)
    assert passes(schedule).workers == plain.workers
    assert any(task.op is OFFLOAD for task in schedule.workers[0])
    assert end(schedule, taking(0.0, 1)) == end(plain, {})


@pytest.mark.parametrize(
    ("made", "costs", "links"),
    [
        (bpipe(4, 8), {}, flat(4, 2.0)),
        (pipe_offload(8, 8, workers=4), {"host_bytes_per_s": 2.0}, None),
    ],
    ids=["bpipe", "pipe_offload"],
)
def test_the_simulation_has_as_many_bytes(
    made: Schedule, costs: dict[str, float], links: object
) -> None:
    """A microbatch's activations are a byte, which a link carries in half a second."""
    schedule = made.take(1)
    layer = LayerProfile("stage", 1.0, 2.0, saved_bytes=1.0, saves_output=True)
    profile = Profile((layer,) * schedule.stages)
    trace = simulate(schedule, Costs(profile, **costs), None, links)  # type: ignore[arg-type]
    assert trace.memory is not None
    held = trace.memory.frame.groupby("worker")["activations"].max()
    assert held.to_list() == peaks_over_time(schedule, taking(0.5, 4))


def test_partners_are_those_of_the_same_pipeline() -> None:
    twice = replicate(bpipe(4, 4), 2).take(1)
    check(twice)
    peers = [{t.op.peer for t in tasks} - {None} for tasks in twice.workers]
    assert peers == [{6}, {7}, *[set()] * 6]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (lambda: bpipe(0, 4), "stages must be a whole number"),
        (lambda: pipe_offload(4, 4, workers=4), "one stage a worker is flush"),
        (lambda: pipe_offload(4, 4, workers=2, offloaded_stages=3), "from 0 to a worker's 2"),
    ],
)
def test_what_cannot_be_is_refused(method: Callable[[], Schedule], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        method()


def peaks_over_time(schedule: Schedule, durations: Mapping[Op, float]) -> list[int]:
    """Return the most that each worker has at once, those that it keeps for another one too.

    Activations are there from the beginning of the task that makes or brings them to the end of
    that which uses them up or takes them away; so for a while they are at both ends of a transfer.
    """
    changes: list[Counter[tuple[float, int]]] = [Counter() for _ in schedule.workers]
    times = slots(schedule, durations)
    for worker, tasks in enumerate(schedule.workers):
        for task, (start, end) in zip(tasks, times[worker].tolist(), strict=True):
            name, peer = task.op.base_name, task.op.peer
            if name in ("FORWARD", "LOAD"):
                changes[worker][start, 1] += 1
            if name in ("BACKWARD", "BACKWARD_WEIGHT", "OFFLOAD"):
                changes[worker][end, -1] += 1
            if peer is not None and name == "OFFLOAD":
                changes[peer][start, 1] += 1
            if peer is not None and name == "LOAD":
                changes[peer][end, -1] += 1
    return [most(each) for each in changes]


def most(changes: Counter[tuple[float, int]]) -> int:
    """What ends at a time goes before what begins then."""
    here = peak = 0
    for (_, sign), count in sorted(changes.items()):
        here += sign * count
        peak = max(peak, here)
    return peak


@pytest.mark.parametrize("method", [flush, gpipe, zb_h1, bpipe])
def test_what_recomputes_or_is_away_can_be_offloaded_too(method: Callable[..., Schedule]) -> None:
    made = method(4, 8)
    for both in (recomputed(offloaded(made, {0}), {0}), offloaded(recomputed(made, {1}), {0, 1})):
        check(both)
