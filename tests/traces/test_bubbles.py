"""The three bubbles of methods whose closed forms tell them apart."""

import math

import pandas as pd
import pytest

from pipekit.schedules import Schedule, flush, inference, pipedream, two_bw, zb_h1, zb_h2
from pipekit.traces import Trace, describe_bubbles


def bubbles(schedule: Schedule) -> "pd.Series[float]":
    return Trace.from_schedule(schedule).bubbles().loc["all"]


@pytest.mark.parametrize("p", [2, 4])
def test_zb_h2_idles_in_none_but_the_makespan(p: int) -> None:
    m, batches = 3 * p, 4
    found = bubbles(zb_h2(p, m).take(batches))
    assert found["makespan"] == pytest.approx((p - 1) / (3 * m * batches + p - 1))
    assert found["span"] == pytest.approx(0)
    assert found["steady"] == pytest.approx(0)


@pytest.mark.parametrize("p", [2, 4])
def test_flush_and_zb_h1_pay_theirs_every_batch(p: int) -> None:
    m, batches = 2 * p, 4
    assert bubbles(flush(p, m).take(batches))["steady"] == pytest.approx((p - 1) / (m + p - 1))
    h1 = bubbles(zb_h1(p, m).take(batches))
    assert h1["steady"] == pytest.approx((p - 1) / (3 * m + p - 1))
    assert h1["makespan"] == pytest.approx(h1["steady"])
    assert h1["span"] < h1["makespan"]


def test_a_worker_that_begins_last_and_ends_first_has_no_bubble_in_its_span() -> None:
    shares = Trace.from_schedule(flush(3, 4).take(1)).bubbles()
    assert shares["makespan"].tolist() == pytest.approx([1 / 3] * 4)
    assert shares["span"].tolist()[:3] == pytest.approx([6 / 18, 3 / 15, 0])
    assert shares["steady"].isna().all()


@pytest.mark.parametrize("schedule", [pipedream(4).take(40), two_bw(4, 4).take(10)])
def test_without_flushes_the_steady_period_has_none(schedule: Schedule) -> None:
    found = bubbles(schedule)
    assert found["steady"] == pytest.approx(0, abs=1e-12)
    assert found["makespan"] > found["span"] > 0


def test_what_has_no_steady_period_is_not_said_to_have_a_bubble_in_it() -> None:
    found = bubbles(inference(2).take(4))
    assert found["makespan"] == pytest.approx(1 / 5)
    assert math.isnan(found["steady"])
    text = describe_bubbles(Trace.from_schedule(inference(2).take(4)).bubbles())
    assert text == "bubble 20.0 % of makespan, 0.0 % of spans"


def test_the_makespans_is_the_traces_and_idle_workers_count() -> None:
    trace = Trace.from_schedule(Schedule((flush(1, 2).take(1).workers[0], ())))
    shares = trace.bubbles()
    assert shares.loc["all", "makespan"] == trace.bubble == pytest.approx(0.5)
    assert shares.loc[1, "makespan"] == 1
    assert math.isnan(shares.loc[1, "span"])
