"""Workers' own lists, other policies, and when messages are on their timelines."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from experiments.pipedream import STRAIGHT, one_layer_stages, timelines
from experiments.pipedream.timelines import by_preference, worker_list
from pipekit import Pipeline, Watch, emulate, schedules, simulate
from pipekit.clusters import flat
from pipekit.schedules import Op, optimal_in_flight
from pipekit.traces import Trace
from tests.emulation.own_time import own_time


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


def test_every_message_is_counted_by_its_purpose() -> None:
    data = [(torch.randn(2, 4), torch.randn(2, 4))] * 6
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        schedules.pipedream([2, 1]),
        balance=[1, 1],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
    )
    # Two replicas swap a shard and its sum in each of three rounds.
    counter = timelines.MessageCounter()
    pipeline.train(data, watch=Watch(observers=[counter]))
    assert counter.seen == {"activation": 6, "gradient": 6, "weights": 12}


def test_messages_of_an_emulated_run_are_where_its_links_had_them() -> None:
    passes, cluster = one_layer_stages([(0.01, 0.01)] * 2, output_bytes=1e4), flat(2, 4e6)
    table = schedules.pipedream(2).take(4)
    with own_time():
        trace = emulate(table, passes, cluster=cluster).trace
    sent = timelines.link_times(trace, cluster, table)
    assert len(sent) == 8
    assert set(sent["purpose"]) == {"activation", "gradient"}
    assert (sent["end_s"] - sent["start_s"]).tolist() == pytest.approx([1e4 / 4e6] * 8)


@pytest.mark.parametrize(("replicas", "margin"), [(STRAIGHT, 1), ([1, 1, 2], 2), ([3, 2], 1)])
def test_no_shorter_run_has_a_steady_state(replicas: list[int], margin: int) -> None:
    least = timelines.run_length(replicas, 1, margin)
    timelines.steady(
        Trace.from_schedule(schedules.pipedream(replicas).take(least)), replicas, margin
    )
    with pytest.raises(ValueError, match=f"run at least {least}"):
        timelines.steady(
            Trace.from_schedule(schedules.pipedream(replicas).take(least - 1)), replicas, margin
        )


def test_all_parts_of_a_run_are_whole_rounds() -> None:
    assert timelines.run_length([2, 1, 1], 5) == 8 + 6 + 4
    assert timelines.run_length([3, 2], 1) == 12 + 6 + 6
    assert timelines.run_length([4], 1) == 16
    assert timelines.run_length([1, 1], 3, margin=3) == 12 + 3 + 6


def test_unequal_stages_idle_as_the_closed_form_says() -> None:
    draw = random.Random(1)
    times = [(draw.uniform(1, 5), draw.uniform(1, 5)) for _ in range(3)]
    trace = simulate(schedules.pipedream(3).take(60), one_layer_stages(times))
    whole = [sum(pair) for pair in times]
    idle = 1 - timelines.utilisation(trace, [1, 1, 1])
    assert idle == pytest.approx(1 - sum(whole) / 3 / max(whole), rel=1e-9)
