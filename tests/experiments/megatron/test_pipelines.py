"""Bubbles, messages and GPT-3's seconds, by hand."""

import pytest

from experiments.megatron.gpts import GPT_3, S
from experiments.megatron.pipelines import bubble, gain, messages, pipeline, seconds
from pipekit import schedules


def test_a_bubble_is_over_the_ideal_time() -> None:
    """Two devices and one microbatch: each idles as long as it computes."""
    assert bubble(schedules.gpipe(2, 1)) == pytest.approx(1)
    assert bubble(pipeline(2, 4), backward=5) == pytest.approx(1 / 4)
    assert bubble(pipeline(2, 4, v=3)) == pytest.approx(1 / 12)


def test_a_loop_of_stages_goes_from_the_last_device_to_the_first() -> None:
    assert messages(pipeline(2, 1)) == 2
    assert messages(pipeline(2, 1, v=2)) == 6
    assert [messages(pipeline(3, 1, v=2), device) for device in range(3)] == [3, 4, 3]


def test_a_device_that_waits_takes_its_transfers_time_in_each_pass() -> None:
    forward = 96 * (24 * S * 12_288**2 + 4 * S**2 * 12_288) / 12 / 8 / 140e12
    transfer = 2 * S * 12_288 / 25e9
    assert GPT_3.hidden == 12_288
    whole = (24 + 11) * (4 * forward + 2 * transfer)
    assert seconds(24, 1, scatter_gather=False, waits=True) == pytest.approx(whole)
    part = (24 + 11) * (4 * forward + 2 * transfer / 8)
    assert seconds(24, 1, waits=True) == pytest.approx(part)


def test_interleaving_loses_where_its_messages_take_more_than_its_bubble_saves() -> None:
    assert gain(24, 2) > 0 > gain(240, 8, scatter_gather=False, waits=True)
