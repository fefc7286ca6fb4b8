"""From a table to messages and memory."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.schedules import (
    Message,
    Op,
    Payload,
    Schedule,
    asp,
    check,
    flush,
    gpipe,
    lower,
    parse,
    pipedream,
    replicate,
)
from pipekit.schedules.lowering.lower import Skips
from pipekit.schedules.lowering.steps import MAIN
from pipekit.schedules.lowering.sums import Sum, sum_order, sums
from tests.engine.replicas.shared_tables import at_random, down_then_up, two_directions
from tests.schedules.strategies import methods, minibatches, taken


def steps(schedule: Schedule, worker: int, skips: Skips = ()) -> str:
    """Return a worker's steps as text: ``0>F1>2+3/0`` receives from 0, sends to 2 and 3.

    What goes to 3 is skip connection 0.
    """

    def ends(messages: tuple[tuple[Message, int], ...]) -> str:
        return "+".join(
            f"{worker}" + (f"/{message.skip}" if message.skip != MAIN else "")
            for message, worker in messages
        )

    return " ".join(
        f"{ends(s.receives)}>{s.task.op.letter}{s.task.microbatch}>{ends(s.sends)}"
        for s in lower(schedule, skips)[worker].head
    )


def test_a_pipeline_of_three() -> None:
    schedule = gpipe(3, 2).take(1)
    assert steps(schedule, 0) == ">F0>1 >F1>1 1>B0> 1>B1> >U1>"
    assert steps(schedule, 1) == "0>F0>2 0>F1>2 2>B0>0 2>B1>0 >U1>"
    assert steps(schedule, 2) == "1>F0> 1>F1> >B0>1 >B1>1 >U1>"


def test_the_gradient_is_sent_by_the_part_for_the_input() -> None:
    schedule = parse("worker 0 | F0 F1 I0 I1 W0 W1^\nworker 1 | F0 F1 B0 I1 W1^")
    assert steps(schedule, 0) == ">F0>1 >F1>1 1>I0> 1>I1> >W0> >W1> >U1>"
    assert steps(schedule, 1) == "0>F0> 0>F1> >B0>0 >I1>0 >W1> >U1>"
    ends = [[str(s.task.label) for s in steps.head if s.ends_update] for steps in lower(schedule)]
    assert ends == [["W1"], ["W1"]]


def test_skips_of_a_split_backward_end_at_its_part_for_the_input() -> None:
    schedule = parse("worker 0 | F0 B0^\nworker 1 | F0 B0^\nworker 2 | F0 I0 W0^")
    assert steps(schedule, 2, [(0, 2)]) == "1+0/0>F0> >I0>1+0/0 >W0> >U0>"
    assert steps(schedule, 0, [(0, 2)]) == ">F0>1+2/0 1+2/0>B0> >U0>"


def test_a_stage_after_the_next_may_be_at_home() -> None:
    """Stages 0 and 2 on worker 0, stage 1 on worker 1."""
    schedule = parse("worker 0 | F0 F0@2 B0@2^@2 B0^\nworker 1 | F0 B0^")
    assert steps(schedule, 0) == ">F0>1 1>F0> >B0>1 >U0> 1>B0> >U0>"
    assert steps(schedule, 1) == "0>F0>0 0>B0>0 >U0>"


@given(methods)
def test_steps_are_the_tasks_in_order_with_peak_versions_many_slots(schedule: Schedule) -> None:
    lowered = lower(schedule)
    assert tuple(tuple(step.task for step in steps.head) for steps in lowered) == schedule.workers
    counts = tuple(steps.slots[stage] for stage, steps in enumerate(lowered))
    assert counts == check(schedule).peak_versions


@given(methods)
def test_every_message_sent_is_received_and_none_is_sent_home(schedule: Schedule) -> None:
    sent: Counter[tuple[int, int, Payload, int]] = Counter()
    received: Counter[tuple[int, int, Payload, int]] = Counter()
    for worker, lowered in enumerate(lower(schedule)):
        for step in lowered.head:
            for (payload, _, microbatch, *_), receiver in step.sends:
                sent[worker, receiver, payload, microbatch] += 1
            for (payload, _, microbatch, *_), sender in step.receives:
                received[sender, worker, payload, microbatch] += 1
    passes = 2 if schedule.trains else 1
    assert sent == received
    assert sent.total() == passes * (schedule.stages - 1) * schedule.microbatches


def test_a_skip_goes_straight_from_its_source_to_its_destination_and_back() -> None:
    """Two of them from stage 0: over one stage, and to the next."""
    schedule, skips = gpipe(3, 1).take(1), [(0, 2), (0, 1)]
    assert steps(schedule, 0, skips) == ">F0>1+2/0+1/1 1+2/0+1/1>B0> >U0>"
    assert steps(schedule, 1, skips) == "0+0/1>F0>2 2>B0>0+0/1 >U0>"
    assert steps(schedule, 2, skips) == "1+0/0>F0> >B0>1+0/0 >U0>"


def test_of_a_shared_weight_only_the_gradient_goes_and_counts_as_weights() -> None:
    """Stages 0, 1 and 2 have a weight, stages 0 and 2 another one."""
    schedule = parse("worker 0 | F0 B0^\nworker 1 | F0 I0 W0^\nworker 2 | F0 B0^")
    first, middle, last = (steps.head for steps in lower(schedule, ties=[(0, 1), (1, 2), (0, 2)]))
    backward = first[1]
    assert [(m.skip, m.purpose, w) for m, w in backward.receives] == [
        (-1, "gradient", 1),
        (-2, "weights", 1),
        (-4, "weights", 2),
    ]
    assert [(m.skip, w) for m, w in middle[1].receives] == [(-1, 2), (-3, 2)]
    assert [(m.skip, w) for m, w in middle[1].sends] == [(-1, 0), (-2, 0)]
    assert [(m.skip, w) for m, w in last[1].sends] == [(-1, 1), (-3, 1), (-4, 0)]
    others = (
        step for steps in (first, middle, last) for step in steps if step.task.op is Op.FORWARD
    )
    assert {m.skip for step in others for m, _ in (*step.receives, *step.sends)} == {-1}


def test_with_replicas_a_skip_goes_to_the_worker_that_has_the_microbatch() -> None:
    schedule = pipedream([1, 2, 2]).take(3)
    assert steps(schedule, 0, [(0, 2)]).split()[:3] == [">F0>1+3/0", ">F1>2+4/0", ">F2>1+3/0"]


# --- Batches, updates, and what they sum ---------------------------------------------------------


def marked(schedule: Schedule, worker: int) -> str:
    """Return a worker's steps with the update that each belongs to and what it ends.

    ``B1/2|!`` is a backward of update 2, the worker's last pass of its batch and of the update.
    """
    return " ".join(
        f"{s.task.op.letter}{s.task.microbatch}/{s.update}"
        f"{'|' if s.ends_batch and s.task.op is not Op.UPDATE else ''}{'!' if s.ends_update else ''}"
        for s in lower(schedule)[worker].head
    )


def test_the_last_backward_of_an_update_ends_it_wherever_it_stands() -> None:
    schedule = parse("worker 0 | F0 F1 F2 B2 B0 B1^2 F3 B3^")
    assert marked(schedule, 0) == "F0/1 F1/1 F2/1| B2/1| B0/1 B1/1! U2/1 F3/2| B3/2|! U3/2"


def test_replicas_add_a_gradient_an_update_each() -> None:
    schedule = pipedream([2, 1]).take(3)
    assert marked(schedule, 0) == "F0/1| F2/2| B0/1|! U1/1 B2/2|! U2/2"
    assert marked(schedule, 1) == "F1/1| B1/1|! U1/1 U2/2"
    assert marked(schedule, 2) == "F0/1| B0/1|! U0/1 F1/2| B1/2|! U1/2 F2/3| B2/3|! U2/3"


def summed(schedule: Schedule) -> tuple[tuple[Sum, ...], ...]:
    return tuple(each.head for each in sums(schedule))


def test_sums_name_their_contributors_and_count_their_batches() -> None:
    assert summed(pipedream([2, 1]).take(3)) == (
        (Sum((0, 1), batches=2, end=2), Sum((0,), batches=1, end=3)),
        tuple(Sum((2,), batches=1, end=end) for end in (1, 2, 3)),
    )
    assert summed(replicate(flush(2, 2).take(2), 2)) == (
        tuple(Sum((0, 1), batches=1, end=end) for end in (4, 8)),
        tuple(Sum((2, 3), batches=1, end=end) for end in (4, 8)),
    )
    assert summed(asp(3).take(4)) == (tuple(Sum((k % 3,), batches=1, end=k + 1) for k in range(4)),)


replicated = st.one_of(
    taken(st.builds(pipedream, st.lists(st.integers(1, 4), min_size=1, max_size=3)), minibatches),
    taken(st.builds(asp, st.integers(1, 4)), minibatches),
    st.builds(replicate, methods, st.integers(1, 3)),
)


@given(replicated)
def test_every_gradient_goes_into_the_one_update_that_sums_it(schedule: Schedule) -> None:
    into = {(stage, k): 0 for stage in range(schedule.stages) for k in range(schedule.microbatches)}
    for steps in lower(schedule):
        for step in steps.head:
            op, stage, k, version = step.task
            if op is Op.UPDATE:
                assert step.update == version
            elif schedule.trains:
                assert k in schedule.updates[stage][step.update - 1]
                into[stage, k] += op in (Op.BACKWARD, Op.BACKWARD_WEIGHT)
    assert set(into.values()) == {int(schedule.trains)}


@given(replicated)
def test_whoever_has_a_gradient_for_an_update_ends_it_once(schedule: Schedule) -> None:
    ended: dict[tuple[int, int], list[int]] = {}
    for worker, steps in enumerate(lower(schedule)):
        last = {
            (s.task.stage, s.update): place
            for place, s in enumerate(steps.head)
            if s.task.op in (Op.BACKWARD, Op.BACKWARD_WEIGHT)
        }
        for place, step in enumerate(steps.head):
            if step.ends_update:
                assert last[step.task.stage, step.update] == place
                ended.setdefault((step.task.stage, step.update), []).append(worker)
    assert ended == {
        (stage, number): list(summed.contributors)
        for stage, each in enumerate(sums(schedule))
        for number, summed in enumerate(each.head, start=1)
    }


@given(replicated)
def test_a_batch_ends_for_a_worker_with_its_highest_microbatch_of_it(schedule: Schedule) -> None:
    for steps in lower(schedule):
        passes = [s for s in steps.head if s.task.op is not Op.UPDATE]
        for step in passes:
            _, stage, k, _ = step.task
            batch = next(b for b in schedule.batches if k in b)
            own = [s.task.microbatch for s in passes if s.task.stage == stage]
            assert step.ends_batch == (k == max(i for i in own if i in batch))


@given(replicated)
def test_gradients_of_a_sum_are_from_so_many_batches(schedule: Schedule) -> None:
    for updates, each in zip(schedule.updates, sums(schedule), strict=True):
        for summed, found in zip(updates, each.head, strict=True):
            assert found.batches == len({schedule.batch_of[k] for k in summed})


def test_sums_come_as_their_gradients_do() -> None:
    assert sum_order(pipedream([2, 1]).take(3)).head == ((0, 1), (0, 2))
    assert sum_order(replicate(flush(2, 2).take(2), 2)).head == ((1, 1), (0, 1), (1, 2), (0, 2))
    assert sum_order(two_directions(2, 2, 1)).head == ((1, 1), (0, 1))


def test_both_ends_have_one_order() -> None:
    """Down, then up: worker 0 adds to stage 0 first, and worker 1 to stage 1."""
    assert sum_order(down_then_up(2, 4, 2)).head == ((1, 1), (0, 1), (1, 2), (0, 2))


def test_updates_of_a_stage_stay_in_order() -> None:
    """The gradients of the second are complete before those of the first."""
    schedule = parse("""
        # mine; batches of 1
        worker 0         | F2 B2^0^2
        worker 1 stage 0 | F1 F0 B1 B0^0^2
        """)
    assert sum_order(schedule).head == ((0, 1), (0, 2))


@pytest.mark.parametrize("seed", range(20))
def test_every_sum_comes_once(seed: int) -> None:
    schedule = at_random(seed)
    shared = [s for s, workers in enumerate(schedule.stage_workers) if len(workers) > 1]
    wanted = [(s, 1 + u) for s in shared for u in range(len(schedule.updates[s]))]
    assert sorted(sum_order(schedule).head) == wanted
