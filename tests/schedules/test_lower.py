"""From a table to messages and memory."""

from collections import Counter

import pytest
from hypothesis import given

from pipekit.schedules import (
    Op,
    Schedule,
    Step,
    buffer_count,
    check,
    gpipe,
    lower,
    parse,
    pipedream,
    two_bw,
)
from tests.schedules.strategies import methods


def steps(schedule: Schedule, worker: int) -> str:
    """Return a worker's steps as text: ``0>F1>2`` receives from 0 and sends to 2."""

    def end(worker: int | None) -> str:
        return "" if worker is None else str(worker)

    return " ".join(
        f"{end(s.source)}>{s.task.op.value}{s.task.microbatch}>{end(s.destination)}"
        for s in lower(schedule)[worker]
    )


def test_a_pipeline_of_three() -> None:
    schedule = gpipe(3, 2)
    assert steps(schedule, 0) == ">F0>1 >F1>1 1>B0> 1>B1> >U1>"
    assert steps(schedule, 1) == "0>F0>2 0>F1>2 2>B0>0 2>B1>0 >U1>"
    assert steps(schedule, 2) == "1>F0> 1>F1> >B0>1 >B1>1 >U1>"


def test_one_stage_talks_to_nobody() -> None:
    assert steps(gpipe(1, 1), 0) == ">F0> >B0> >U0>"


def test_inference_sends_no_gradients() -> None:
    assert steps(parse("worker 0 | F0\nworker 1 | F0"), 1) == "0>F0>"


def test_a_stage_after_the_next_may_be_at_home() -> None:
    """Stages 0 and 2 on worker 0, stage 1 on worker 1."""
    schedule = parse("worker 0 | F0 F0@2 B0@2^@2 B0^\nworker 1 | F0 B0^")
    assert steps(schedule, 0) == ">F0>1 1>F0> >B0>1 >U0> 1>B0> >U0>"
    assert steps(schedule, 1) == "0>F0>0 0>B0>0 >U0>"


@pytest.mark.parametrize(
    ("schedule", "counts"),
    [
        (gpipe(4, 8, 3), (1, 1, 1, 1)),
        (two_bw(4, 8, 3), (2, 2, 2, 2)),
        (pipedream(4, 8), (4, 3, 2, 1)),
        (pipedream(4, 8, vertical_sync=True), (4, 4, 4, 4)),
        (pipedream(4, 8, stashing=False), (1, 1, 1, 1)),
    ],
)
def test_buffers_of_each_stage(schedule: Schedule, counts: tuple[int, ...]) -> None:
    assert tuple(buffer_count(s, stage) for stage, s in enumerate(lower(schedule))) == counts


@given(methods)
def test_steps_are_the_tasks_in_their_order_with_peak_versions_many_buffers(
    schedule: Schedule,
) -> None:
    lowered = lower(schedule)
    assert tuple(tuple(step.task for step in steps) for steps in lowered) == schedule.workers
    counts = tuple(buffer_count(steps, stage) for stage, steps in enumerate(lowered))
    assert counts == check(schedule).peak_versions


@given(methods)
def test_every_message_sent_is_received_and_none_is_sent_home(schedule: Schedule) -> None:
    sent: Counter[tuple[int, int, Op, int]] = Counter()
    received: Counter[tuple[int, int, Op, int]] = Counter()
    for worker, lowered in enumerate(lower(schedule)):
        for step in lowered:
            op, _, microbatch, _ = step.task
            if step.destination is not None:
                sent[worker, step.destination, op, microbatch] += 1
            if step.source is not None:
                received[step.source, worker, op, microbatch] += 1
    passes = 2 if schedule.trains else 1
    assert sent == received
    assert sent.total() == passes * (schedule.stages - 1) * schedule.microbatches


def test_a_step_is_a_task_with_its_ends_and_its_buffer() -> None:
    (step, *_) = lower(gpipe(2, 1))[1]
    task = gpipe(2, 1).workers[1][0]
    assert step == Step(task, source=0, destination=None, buffer=0, update=1, ends_batch=True)
