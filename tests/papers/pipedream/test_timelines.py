import math
import random

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipekit import Pipeline, emulate, schedules, simulate
from pipekit.clusters import flat
from pipekit.papers.pipedream import timelines as tl
from pipekit.papers.timelines import EQUAL_SLOTS, most_active, starts
from pipekit.schedules import Op, Schedule
from pipekit.traces import Trace

STRAIGHT = [1, 1, 1, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 20))
def test_lists_that_workers_make_alone_are_the_table(replicas: list[int], minibatches: int) -> None:
    together = tl.one_f_one_b(replicas, minibatches)
    assert together.workers == schedules.pipedream(replicas, minibatches).workers


def test_more_in_flight_hides_transfers_that_noam_leaves_exposed() -> None:
    passes, links = tl.profile_of([(1, 2)] * 4, output_bytes=1), flat(4, 1 / 0.75)
    more = tl.with_links_as_stages(STRAIGHT)
    assert more == [7, 5, 3, 1]
    noam, enough = (
        simulate(table, passes, cluster=links)
        for table in (schedules.pipedream(4, 60), tl.one_f_one_b(STRAIGHT, 60, more))
    )
    assert tl.seconds_a_minibatch(noam, STRAIGHT) == pytest.approx(3 + 6 * 0.75 / 4)
    assert tl.seconds_a_minibatch(enough, STRAIGHT) == pytest.approx(3)
    assert noam.transfers is not None
    assert enough.transfers is not None
    assert tl.hidden_fraction(noam, noam.transfers, STRAIGHT) < 0.6
    assert tl.hidden_fraction(enough, enough.transfers, STRAIGHT) == pytest.approx(1)


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


def test_figure_3_has_one_worker_active_and_figure_8_four() -> None:
    one = Trace.from_schedule(schedules.model_parallel(4, 2), EQUAL_SLOTS)
    four = Trace.from_schedule(schedules.pipedream(4, 30), EQUAL_SLOTS)
    assert (most_active(one), most_active(four)) == (1, 4)
    assert starts(four)["BACKWARD", 0, 0] == 7
    assert tl.utilisation(four, STRAIGHT) == 1


def test_too_short_a_run_has_no_steady_state() -> None:
    with pytest.raises(ValueError, match="run at least 26"):
        tl.steady(Trace.from_schedule(schedules.pipedream(4, 20)), [1, 1, 2])


def test_unequal_stages_idle_as_the_closed_form_says() -> None:
    draw = random.Random(1)
    times = [(draw.uniform(1, 5), draw.uniform(1, 5)) for _ in range(3)]
    trace = simulate(schedules.pipedream(3, 60), tl.profile_of(times))
    whole = [sum(pair) for pair in times]
    assert tl.idle_error(whole, 1 - tl.utilisation(trace, [1, 1, 1])) < 1e-9
    assert tl.idle_error([1, 3], 1 / 3) == pytest.approx(0, abs=1e-12)
    assert tl.idle_error([1, 3], 0.5) == pytest.approx(0.5)


def test_routing_and_alternation_are_told_from_their_breaking() -> None:
    table = schedules.pipedream([2, 1], 8)
    assert tl.routed_round_robin(table)
    assert tl.backward_follows_forward(table)
    assert tl.alternates(table)
    swapped = Schedule((table.workers[1], table.workers[0], table.workers[2]), batch_size=1)
    assert not tl.routed_round_robin(swapped)
    assert not tl.alternates(schedules.gpipe(2, 4, 2))


def test_messages_of_an_emulated_run_are_where_its_links_had_them() -> None:
    passes, links = tl.profile_of([(0.01, 0.01)] * 2, output_bytes=1e4), flat(2, 4e6)
    table = schedules.pipedream(2, 4)
    sent = tl.link_times(emulate(table, passes, cluster=links).trace, links, table)
    assert len(sent) == 8
    assert set(sent["purpose"]) == {"activation", "gradient"}
    assert (sent["end_s"] - sent["start_s"]).tolist() == pytest.approx([1e4 / 4e6] * 8)


def test_a_machine_is_drawn_above_what_it_sends_and_receives() -> None:
    passes, links = tl.profile_of([(1, 1)] * 2, output_bytes=1), flat(2, 4.0)
    trace = simulate(schedules.pipedream(2, 3), passes, cluster=links)
    assert trace.transfers is not None
    machine = tl.machine_and_links(trace, trace.transfers, 0, (0, math.inf))
    per_row = machine.frame.groupby(["worker", "op"]).size()
    assert per_row[1].to_dict() == {"FORWARD": 3}
    assert per_row[2].to_dict() == {"BACKWARD": 3}
    figure = tl.machine_figure([machine], ["A finding"])
    assert figure.layout.annotations[0].text == "A finding (simulated)"


def test_every_message_is_counted_by_its_purpose() -> None:
    data = [(torch.randn(2, 4), torch.randn(2, 4))] * 6
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        lambda n: schedules.pipedream([2, 1], n),
        balance=[1, 1],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
    )
    # Two replicas swap a shard and its sum in each of three rounds.
    assert tl.messages(lambda observers: pipeline.train(data, observers=observers)) == {
        "activation": 6,
        "gradient": 6,
        "weights": 12,
    }


def test_a_message_without_tensors_is_control() -> None:
    counter = tl.MessageCounter()
    step = schedules.lower(schedules.gpipe(2, 1))[0][0]
    (message, receiver), *_ = step.sends
    counter.sent(0, step, message, receiver, (), 0)
    counter.values_summed(0, 1, torch.zeros(1))
    assert counter.seen == {"control": 2}


def test_busy_time_counts_only_the_window() -> None:
    frame = pd.DataFrame({"start_s": [0.0, 2.0], "end_s": [1.0, 4.0]})
    assert tl._busy(frame, 0.5, 3.0) == pytest.approx(1.5)


def test_by_the_clock_a_stage_that_gets_ahead_looks_busier() -> None:
    times = [(5.0, 5.0), (5.0, 4.9), (5.0, 5.05)]
    trace = simulate(schedules.pipedream(3, 60), tl.profile_of(times))
    equal = Trace.from_schedule(schedules.pipedream(3, 60), EQUAL_SLOTS)
    assert tl.clock_utilisation(equal, [1, 1, 1]) == tl.utilisation(equal, [1, 1, 1]) == 1
    assert tl.clock_utilisation(trace, [1, 1, 1]) >= tl.utilisation(trace, [1, 1, 1]) - 1e-9
