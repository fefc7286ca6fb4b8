"""The proof of executability, against brute force, and what it says of broken schedules."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit.schedules import (
    LOAD,
    OFFLOAD,
    Op,
    Schedule,
    ScheduleError,
    Task,
    check,
    flushed,
    lower,
    parse,
    pipedream,
)
from tests.schedules.reference import executable, in_flight, refusal, versions_alive
from tests.schedules.strategies import SLIPS, Slip, methods, slipped, stashing_methods

F, B, U = Op.FORWARD, Op.BACKWARD, Op.UPDATE
A_TASK = r"[FBIWU]\d+ of stage \d+|Task\("


# --- What passes ----------------------------------------------------------------------------------


def test_a_report_prints_its_peaks() -> None:
    report = "<Report, the most a worker: weight versions 3 2 1; in flight 3 2 1>"
    assert repr(check(pipedream(3))) == report


@given(methods)
def test_what_the_report_counts_is_what_brute_force_counts(schedule: Schedule) -> None:
    report = check(schedule)
    for worker, tasks in enumerate(schedule.workers):
        assert report.versions[worker].tolist() == [len(v) for v in versions_alive(tasks)]
        if schedule.trains:
            assert report.in_flight[worker].tolist() == in_flight(tasks)


# --- What does not: each rule, and the tasks its error names --------------------------------------


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("", "the schedule is empty"),
        ("worker 0 |", "the schedule is empty"),
        # every task once
        ("worker 0 | F0 F1 B0 B0^", "B0 of stage 0 stands in the table twice: on worker 0 and on"),
        ("worker 0 | F0 F2 B0 B2^", "no worker has F1 of stage 0"),
        ("worker 0 | F0 F1 B1^", "no worker has B0 of stage 0"),
        ("worker 0 | F0 B0^\nworker 1 | F0", "no worker has B0 of stage 1"),
        ("worker 0 stage 1 | F0 B0^", "no worker has F0 of stage 0"),
        # no waiting for ever
        ("worker 0 | B0 F0^0", "worker 0 waits in B0 of stage 0 for F0 of stage 0, which comes"),
        (
            "worker 0 | F0 B0^ F1 B1^\nworker 1 | F1 F0 B0^ B1^",
            "worker 0 waits in B0 of stage 0 for B0 of stage 1, which worker 1 has; "
            "worker 1 waits in F1 of stage 1 for F1 of stage 0, which worker 0 has",
        ),
        # updates
        ("worker 0 | F0 F1 B0^1 B1", "worker 0 waits in U1 of stage 0 for B1 of stage 0"),
        ("worker 0 | F0 B0", "worker 0 has no U1 of stage 0"),
        ("worker 0 | F0 B0^ F1 B1", "worker 0 has no U2 of stage 0"),
        ("worker 0 | F0 B0^^", "worker 0: U2 of stage 0 sums up to microbatch 0"),
        ("worker 0 | F2 B2^2\nworker 1 stage 0 | F0 F1 B0 B1^", "worker 0: U1 of stage 0 sums up"),
        # versions
        ("worker 0 | F0:1 B0^", "F0 of stage 0 reads version 1 before U1 of stage 0 has produced"),
        (
            "worker 0 | F0 F1 B0^ B1:1^",
            "F1 of stage 0 reads version 0 and B1 of stage 0 version 1; they must be the same, or "
            "declare stashing=False",
        ),
        # where things are
        (
            "worker 0 | F0 B0^\nworker 1 | F0 ^0\nworker 2 stage 1 | . B0^",
            "worker 2 has B0 of stage 1 and another worker its forward",
        ),
        ("worker 0 | F0 B0^\nworker 1 | F0 B0^ ^0@0", "worker 1 has U1 of stage 0 and no forward"),
        ("worker 0 | F0 B0^\nworker 1 | K0@0 F0 B0^", "worker 1 has K0 of stage 0 and no forward"),
    ],
)
def test_a_broken_schedule_is_refused_with_the_tasks_at_fault(picture: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        check(parse(picture))


def test_a_gap_in_the_updates_is_refused() -> None:
    tasks = (Task(F, 0, 0, 0), Task(B, 0, 0, 0), Task(U, 0, 0, 2))
    with pytest.raises(ScheduleError, match=r"U2 .* follows the initial weights; the .* be U1"):
        check(Schedule((tasks,)))


WRONG = [("F", 0, 0, 0), (F, 0.5, 0, 0), (F, "0", 0, 0), (F, 0, 0.5, 0), (F, 0, None, 0)]


@pytest.mark.parametrize("entry", ["F0", *WRONG, (F, 0, 0, 1.5)])
def test_what_is_no_task_is_named(entry: Any) -> None:
    task: Any = entry if isinstance(entry, str) else Task(*entry)
    for head, period in (((task,),), ()), (((Task(F, 0, 0, 0), task),), ()), (((),), ((task,),)):
        with pytest.raises(ScheduleError, match=rf"0 has {re.escape(repr(task))}, which is"):
            (repr if entry == "F0" else check)(Schedule(head, period=period))
    if task is entry or not task.version:
        with pytest.raises(ScheduleError, match=r"worker 1 has .*, which is not .*Op.FORWARD, and"):
            check(flushed("mine", [[], [entry[:3]]]))


@pytest.mark.parametrize("task", [Task(F, -1, 0, 0), Task(F, 0, -1, 0), Task(F, 0, 0, -1)])
def test_everything_counts_from_0(task: Task) -> None:
    with pytest.raises(ScheduleError, match=rf"{re.escape(repr(task))}.* counts from 0"):
        check(Schedule(((task,),)))


@pytest.mark.parametrize(
    "task", [Task(F, 10**12, 0, 0), Task(F, 0, 10**12, 0), Task(U, 0, 10**12, 1)]
)
@pytest.mark.parametrize("judge", [check, str])
def test_a_number_out_of_all_proportion_is_refused_before_memory_is_taken(
    task: Task, judge: Callable[[Schedule], object]
) -> None:
    with pytest.raises(ScheduleError):
        judge(Schedule(((task,),)))


def test_without_stashing_a_backward_reads_what_lies_where_its_forward_read() -> None:
    """Version 0 is kept for F3, so that update 1 cannot replace it under B1."""
    naive = "# naive; backward may read another version than forward\n"
    with pytest.raises(ScheduleError, match="B1 of stage 0 reads version 1, which does not lie"):
        check(parse(naive + "worker 0 | F0 F1 B0^ B1^ F2:0 B2^"))


# --- Updates that wait for one another: gradients clipped by their norm over the whole model -------


def test_a_joint_update_waits_for_the_backwards_of_all_stages() -> None:
    """On one worker, the update of stage 1 comes before the backward of stage 0."""
    schedule = parse("worker 0 | F0 F0@1 B0@1^@1 B0^")
    check(schedule)
    with pytest.raises(ScheduleError, match="waits in U1 of stage 1 for B0 of stage 0"):
        check(schedule, joint_updates=True)


def test_transfers_beside_a_worker_are_no_workers_to_a_joint_update() -> None:
    first = [(F, 0, 0), (OFFLOAD, 0, 0), (LOAD, 0, 0), (B, 0, 0)]
    moving = Schedule.one_batch("moving", [first, [(F, 1, 0), (B, 1, 0)]])
    assert check(moving, joint_updates=True) is not None
    late = [Task(U, 0, 0, 1), *moving.head[0][:-1]]
    with pytest.raises(ScheduleError, match="worker 0 waits in U1 of stage 0 for B0 of stage 0"):
        check(replace(moving, head=(tuple(late), moving.head[1])), joint_updates=True)


def test_a_joint_update_waits_until_all_workers_are_at_theirs() -> None:
    """Worker 1 comes to U1 after a forward that itself waits for worker 0's U1."""
    schedule = parse("""
        worker 0 | F0 . . B0^ F1   .  B1^
        worker 1 | . F0 B0 .  . F1:0^0 B1^
        """)
    check(schedule)
    with pytest.raises(ScheduleError, match="can never finish"):
        check(schedule, joint_updates=True)


# --- Slips of the pen -----------------------------------------------------------------------------


@settings(max_examples=25)
@pytest.mark.parametrize("slip", SLIPS)
@given(schedule=stashing_methods, data=st.data())
def test_after_a_slip_it_is_refused_just_if_brute_force_cannot_run_it(
    slip: Slip, schedule: Schedule, data: st.DataObject
) -> None:
    other = slipped(data, schedule, slip)
    message = refusal(lambda: check(other))
    assert (message is None) == executable(other), message
    if message is not None:
        assert re.search(A_TASK, message) or not any(other.workers)
        return
    report = check(other)
    for worker, tasks in enumerate(other.workers):
        if len({task.stage for task in tasks}) == 1:
            assert report.versions[worker].tolist() == [len(v) for v in versions_alive(tasks)]
            assert report.in_flight[worker].tolist() == in_flight(tasks)
    lower(other)


@given(st.integers(1, 5), st.integers(1, 8), st.sampled_from(SLIPS), st.data())
def test_after_a_slip_without_stashing_it_is_refused_or_lowered(
    stages: int, minibatches: int, slip: Slip, data: st.DataObject
) -> None:
    other = slipped(data, pipedream(stages, stashing=False).take(minibatches), slip)
    message = refusal(lambda: check(other))
    if message is None:
        lower(other)
    else:
        assert re.search(A_TASK, message) or not any(other.workers)


# --- Size -----------------------------------------------------------------------------------------


BIG = """
import resource, sys
from pipekit.schedules import check, lower, pipedream

def peak_mb():
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6

def prepare(minibatches):
    schedule = pipedream(4).take(minibatches)
    check(schedule)
    lower(schedule)

def calls(minibatches):
    made = 0
    def count(frame, event, argument):
        nonlocal made
        made += event in ("call", "c_call")
    sys.setprofile(count)
    prepare(minibatches)
    sys.setprofile(None)
    return made

before = peak_mb()
prepare(5_000)
print(peak_mb() - before, calls(200), calls(400))
"""


def test_5000_minibatches_over_4_stages(repository: Path) -> None:
    """Built, checked and lowered in a time that grows as they do, and under 10 kB for each.

    So that a training of 20,000 starts at once, in under 200 MB.  PipeDream has the most tasks and
    versions of all methods for as many minibatches.  The process is a fresh one, whose peak is this
    schedule's.
    """
    done = subprocess.run(
        [sys.executable, "-c", BIG],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
    )
    megabytes, few, twice_as_many = map(float, done.stdout.split())
    assert megabytes < 50
    assert twice_as_many < 2.1 * few
