from hypothesis import given
from hypothesis import strategies as st

from experiments.pipedream.policies import by_preference, worker_list
from pipekit import schedules
from pipekit.schedules import Op, optimal_in_flight


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 20))
def test_lists_that_workers_make_alone_are_the_table(replicas: list[int], minibatches: int) -> None:
    in_flight = optimal_in_flight(replicas)
    alone = [
        worker_list(replicas, stage, replica, minibatches, in_flight[stage])
        for stage, width in enumerate(replicas)
        for replica in range(width)
    ]
    assert tuple(alone) == schedules.pipedream(replicas).take(minibatches).workers


def test_forward_first_is_all_forwards_and_backward_first_with_room_is_executable() -> None:
    picture = """
    worker 0 | F0 F1 F2 .  B0^ B1^ B2^
    worker 1 | .  F0 F1 F2 B0^ B1^ B2^
    """
    assert by_preference([(1, 1)] * 2, 3, Op.FORWARD).workers == schedules.parse(picture).workers
    schedules.check(by_preference([(1, 3), (2, 2), (3, 1)], 9, Op.BACKWARD, admitted=2))


def test_a_limit_on_admission_is_kept() -> None:
    table = by_preference([(1, 2)] * 4, 12, Op.BACKWARD, admitted=3)
    assert schedules.check(table).peak_in_flight[0] == 3
