from hypothesis import given
from hypothesis import strategies as st

from pipekit import schedules
from pipekit.papers.pipedream.timelines import tables as tl
from pipekit.schedules import Op, Schedule


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 20))
def test_lists_that_workers_make_alone_are_the_table(replicas: list[int], minibatches: int) -> None:
    together = tl.from_own_lists(replicas, minibatches)
    assert together.workers == schedules.pipedream(replicas).take(minibatches).workers


def test_forward_first_is_all_forwards_and_backward_first_with_room_is_executable() -> None:
    picture = """
    worker 0 | F0 F1 F2 .  B0^ B1^ B2^
    worker 1 | .  F0 F1 F2 B0^ B1^ B2^
    """
    assert tl.by_preference([(1, 1)] * 2, 3, Op.FORWARD).workers == schedules.parse(picture).workers
    schedules.check(tl.by_preference([(1, 3), (2, 2), (3, 1)], 9, Op.BACKWARD, admitted=2))


def test_a_limit_on_admission_is_kept() -> None:
    table = tl.by_preference([(1, 2)] * 4, 12, Op.BACKWARD, admitted=3)
    assert schedules.check(table).peak_in_flight[0] == 3


def test_routing_and_alternation_are_told_from_their_breaking() -> None:
    table = schedules.pipedream([2, 1]).take(8)
    assert tl.routed_round_robin(table)
    assert tl.backward_follows_forward(table)
    assert tl.alternates(table)
    swapped = Schedule((table.workers[1], table.workers[0], table.workers[2]), batch_size=1)
    assert not tl.routed_round_robin(swapped)
    assert not tl.alternates(schedules.gpipe(2, 4).take(2))
