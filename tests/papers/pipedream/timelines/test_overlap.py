"""Figure 4 from a short run, and findings from a fabricated table."""

import math

import pandas as pd
import pytest

from pipekit import emulate, schedules, simulate
from pipekit.clusters import flat
from pipekit.papers.pipedream.steady_state import seconds_a_minibatch
from pipekit.papers.pipedream.timelines import overlap as figure4
from pipekit.papers.pipedream.timelines import overlap as tl
from pipekit.papers.pipedream.timelines.overlap import LINKS_AS_STAGES, NOAM, Overlap
from pipekit.papers.pipedream.timelines.start_up import STRAIGHT, one_layer_stages
from tests.emulation.own_time import own_time


def test_findings_are_of_noam_in_flight() -> None:
    columns = ["exposed (emulated)", "exposed (simulated)", "hidden (emulated)"]
    rows = [
        (NOAM, 0.5, 0.3, 0.25, 0.6, 0.55),
        (LINKS_AS_STAGES, 0.5, 0.02, 0.0, 0.99, 1.0),
        (NOAM, 1.5, 0.5, 0.5, 0.4, 0.4),
        (LINKS_AS_STAGES, 1.5, 0.35, 0.3, 0.7, 0.7),
    ]
    names = ["in flight", "on links / compute", *columns, "hidden (simulated)"]
    exposed, hidden = Overlap(pd.DataFrame(rows, columns=names), {}, 3).findings(0.5, 1.5)
    assert exposed.value == [0.3, 0.5]
    assert "With 7 5 3 1 in flight" in exposed.note
    assert exposed.note.endswith("0.020, 0.350 exposed (emulated), 0.000 (simulated)")
    assert hidden.value == 0.6
    assert hidden.note.endswith("0.990 hidden (emulated); simulated: 0.550 and 1.000")


def test_links_that_keep_up_are_hidden_with_enough_in_flight() -> None:
    found = figure4.overlap(0.004, [0.5], minibatches=40)
    by = found.table.set_index("in flight")
    assert by["hidden (simulated)"][LINKS_AS_STAGES] == pytest.approx(1)
    assert by["exposed (simulated)"][LINKS_AS_STAGES] == pytest.approx(0, abs=1e-9)
    assert by["exposed (simulated)"][NOAM] > 0.2
    figure, numbers = found.machine(0.5)
    assert len(figure.layout.annotations) == 2
    assert set(numbers["in_flight"]) == {NOAM, LINKS_AS_STAGES}
    assert set(numbers["worker"]) == {0, 1, 2}


def test_more_in_flight_hides_transfers_that_noam_leaves_exposed() -> None:
    passes, links = one_layer_stages([(1, 2)] * 4, output_bytes=1), flat(4, 1 / 0.75)
    more = [7, 5, 3, 1]
    noam, enough = (
        simulate(table, passes, cluster=links)
        for table in (
            schedules.pipedream(4).take(60),
            schedules.pipedream(4, in_flight=more).take(60),
        )
    )
    assert seconds_a_minibatch(noam, STRAIGHT) == pytest.approx(3 + 6 * 0.75 / 4)
    assert seconds_a_minibatch(enough, STRAIGHT) == pytest.approx(3)
    assert noam.transfers is not None
    assert enough.transfers is not None
    assert tl.hidden_fraction(noam, noam.transfers, STRAIGHT) < 0.6
    assert tl.hidden_fraction(enough, enough.transfers, STRAIGHT) == pytest.approx(1)


def test_messages_of_an_emulated_run_are_where_its_links_had_them() -> None:
    passes, links = one_layer_stages([(0.01, 0.01)] * 2, output_bytes=1e4), flat(2, 4e6)
    table = schedules.pipedream(2).take(4)
    with own_time():
        trace = emulate(table, passes, cluster=links).trace
    sent = tl.link_times(trace, links, table)
    assert len(sent) == 8
    assert set(sent["purpose"]) == {"activation", "gradient"}
    assert (sent["end_s"] - sent["start_s"]).tolist() == pytest.approx([1e4 / 4e6] * 8)


def test_a_machine_is_drawn_above_what_it_sends_and_receives() -> None:
    passes, links = one_layer_stages([(1, 1)] * 2, output_bytes=1), flat(2, 4.0)
    trace = simulate(schedules.pipedream(2).take(3), passes, cluster=links)
    assert trace.transfers is not None
    machine = tl.machine_and_links(trace, trace.transfers, 0, (0, math.inf))
    per_row = machine.frame.groupby(["worker", "op"]).size()
    assert per_row[1].to_dict() == {"FORWARD": 3}
    assert per_row[2].to_dict() == {"BACKWARD": 3}
    figure = tl.machine_figure([machine], ["A finding"])
    assert figure.layout.annotations[0].text == "A finding (simulated)"
