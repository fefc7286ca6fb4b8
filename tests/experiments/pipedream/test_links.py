"""Figure 4's links from short runs, and the messages that are counted."""

import math

import pytest
import torch
from torch import nn

from experiments.pipedream import STRAIGHT, links, one_layer_stages
from experiments.pipedream.steady_state import seconds_a_minibatch
from pipekit import Pipeline, Watch, emulate, schedules, simulate
from pipekit.clusters import flat
from tests.emulation.own_time import own_time


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
    counter = links.MessageCounter()
    pipeline.train(data, watch=Watch(observers=[counter]))
    assert counter.seen == {
        "activation": 6,
        "gradient": 6,
        "weights": 12,
    }


def test_a_message_without_tensors_is_control() -> None:
    counter = links.MessageCounter()
    step = schedules.lower(schedules.gpipe(2, 1).take(1))[0].head[0]
    (message, receiver), *_ = step.sends
    counter.sent(0, step, message, receiver, (), 0)
    counter.values_summed(0, 1, torch.zeros(1))
    assert counter.seen == {"control": 2}


def test_more_in_flight_hides_transfers_that_noam_leaves_exposed() -> None:
    passes, cluster = one_layer_stages([(1, 2)] * 4, output_bytes=1), flat(4, 1 / 0.75)
    more = [7, 5, 3, 1]
    noam, enough = (
        simulate(table, passes, cluster=cluster)
        for table in (
            schedules.pipedream(4).take(60),
            schedules.pipedream(4, in_flight=more).take(60),
        )
    )
    assert seconds_a_minibatch(noam, STRAIGHT) == pytest.approx(3 + 6 * 0.75 / 4)
    assert seconds_a_minibatch(enough, STRAIGHT) == pytest.approx(3)
    assert noam.transfers is not None
    assert enough.transfers is not None
    assert links.hidden_fraction(noam, noam.transfers, STRAIGHT, margin=2) < 0.6
    assert links.hidden_fraction(enough, enough.transfers, STRAIGHT, margin=2) == pytest.approx(1)


def test_messages_of_an_emulated_run_are_where_its_links_had_them() -> None:
    passes, cluster = one_layer_stages([(0.01, 0.01)] * 2, output_bytes=1e4), flat(2, 4e6)
    table = schedules.pipedream(2).take(4)
    with own_time():
        trace = emulate(table, passes, cluster=cluster).trace
    sent = links.link_times(trace, cluster, table)
    assert len(sent) == 8
    assert set(sent["purpose"]) == {"activation", "gradient"}
    assert (sent["end_s"] - sent["start_s"]).tolist() == pytest.approx([1e4 / 4e6] * 8)


def test_a_machine_is_drawn_above_what_it_sends_and_receives() -> None:
    passes, cluster = one_layer_stages([(1, 1)] * 2, output_bytes=1), flat(2, 4.0)
    trace = simulate(schedules.pipedream(2).take(3), passes, cluster=cluster)
    assert trace.transfers is not None
    machine = links.machine_and_links(trace, trace.transfers, 0, (0, math.inf))
    per_row = machine.frame.groupby(["worker", "op"]).size()
    assert per_row[1].to_dict() == {"FORWARD": 3}
    assert per_row[2].to_dict() == {"BACKWARD": 3}
    figure = links.machine_figure([machine], ["A finding"])
    assert figure.layout.annotations[0].text == "A finding (simulated)"
