"""Modelled compute on the real engine: what it must share with a simulation, and lower bounds."""

import time
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from pipekit import Pipeline, emulate, models, simulate
from pipekit.clusters import flat
from pipekit.clusters.papers import V100
from pipekit.emulation.stage import Waiter
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile, SkipProfile
from pipekit.schedules import (
    Schedule,
    check,
    dualpipe,
    dualpipe_v,
    flush,
    gpipe,
    parse,
    pipedream,
    two_bw,
)
from tests.schedules.strategies import training_methods

MS = 1e-3
TASK = ["worker", "stage", "op", "microbatch", "version", "bytes"]


@settings(max_examples=25, deadline=None)
@given(training_methods)
def test_it_does_what_is_simulated(schedule: Schedule) -> None:
    profile = Profile.uniform(schedule.stages, 0.1 * MS, 0.1 * MS, output_bytes=40)
    run, simulated = emulate(schedule, profile), simulate(schedule, profile)
    assert run.trace.frame[TASK].to_numpy().tolist() == simulated.frame[TASK].to_numpy().tolist()
    report = check(schedule)
    assert run.weight_buffers == report.peak_versions
    assert run.peak_in_flight == report.peak_in_flight


def test_sixteen_workers_run_at_least_as_long_as_simulated() -> None:
    schedule, profile = two_bw(16, 16, 2), Profile.uniform(16, 2 * MS, 4 * MS, output_bytes=4000)
    run = emulate(schedule, profile)
    assert run.trace.label == "emulated"
    assert run.provenance["label"] == "emulated"
    assert run.trace.makespan_s > 0.99 * simulate(schedule, profile).makespan_s


def test_messages_take_the_time_of_the_slow_link() -> None:
    """1000 numbers of 4 bytes at 200 kB/s: 20 ms a message, 8 messages one after the other."""
    profile = Profile.uniform(2, MS, MS, output_bytes=4000)
    schedule, cluster = gpipe(2, 8), flat(2, 200e3)
    starts = emulate(schedule, profile, cluster=cluster).trace.frame.query(
        "stage == 1 and op == 'FORWARD'"
    )["start_s"]
    assert starts.iloc[0] >= 20 * MS
    assert starts.iloc[-1] >= 8 * 20 * MS


def test_a_plan_says_which_layers_and_what_is_recomputed() -> None:
    profile = Profile.uniform(4, MS, MS)
    plan = Plan.by_hand([3, 1], recompute="except_last")
    frame = emulate(gpipe(2, 3), profile, plan).trace.frame
    again = frame[frame["op"] == "RECOMPUTE"]
    assert set(zip(again["stage"], again["microbatch"], strict=True)) == {
        (s, k) for s in (0, 1) for k in (0, 1)
    }
    forwards = frame.query("stage == 0 and op == 'FORWARD'")
    assert (forwards["end_s"] - forwards["start_s"]).mean() >= 3 * MS


def test_an_update_takes_its_seconds() -> None:
    layer = LayerProfile("layer", MS, MS, update_s=10 * MS)
    frame = emulate(pipedream(1, 3), Profile((layer,))).trace.frame
    updates = frame[frame["op"] == "UPDATE"]
    # A pass that was late, on a busy machine, shortens the update behind it.
    assert (updates["end_s"] - updates["start_s"]).mean() >= 8 * MS


def test_a_late_wait_shortens_the_next_so_that_the_mean_is_right() -> None:
    waiter, start = Waiter(), time.perf_counter()
    for _ in range(100):
        waiter.wait(time.perf_counter(), 0.5 * MS)
    assert time.perf_counter() - start >= 49.5 * MS


def test_the_gradients_of_replicas_take_their_time_on_the_links() -> None:
    """Two workers send each other half of the gradients, and then half of the sums."""
    profile = Profile((LayerProfile("layer", MS, MS, parameter_bytes=1e6),))
    run = emulate(pipedream([2], 8), profile, cluster=flat(2, 50e6))
    assert run.traffic["bytes"].tolist() == [4e6, 4e6]
    assert run.trace.makespan_s >= 4 * (2 + 20) * MS
    assert run.trace.label == "emulated"


def test_skips_take_the_time_of_the_link_between_their_ends() -> None:
    """A skip of 40 ms and main tensors of 5 ms: nothing but the skip keeps stage 2 waiting."""
    layers = Profile.uniform(3, MS, MS, output_bytes=1000).layers
    profile = Profile(layers, skips=(SkipProfile("a", 0, 2, 8000),))
    frame = emulate(gpipe(3, 1), profile, cluster=flat(3, 200e3)).trace.frame
    start = frame.set_index(["stage", "op"])["start_s"]
    assert start[1, "FORWARD"] < 40 * MS <= start[2, "FORWARD"]
    assert start[0, "BACKWARD"] - start[2, "BACKWARD"] >= 40 * MS


def test_skips_cross_the_same_links_simulated_emulated_and_for_real() -> None:
    model, images = models.unet(1, 2), torch.rand(2, 3, 64, 64)
    profile = Profile.analytic(model, images, V100).scaled(1)
    plan, schedule = Plan.by_hand([2, 8, 7, 5]), flush(4, 2)
    real = Pipeline(
        model,
        schedule,
        balance=plan,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=nn.MSELoss(),
    ).train([(images, torch.rand(2, 1, 64, 64))])
    emulated, simulated = emulate(schedule, profile, plan), simulate(schedule, profile, plan)
    assert simulated.transfers is not None
    crossed = bytes_by_link(real.traffic)
    assert len(crossed) == 2 * 5, "to the next stage, and straight to 3 from 0 and 1"
    assert bytes_by_link(emulated.traffic) == crossed
    assert bytes_by_link(simulated.transfers) == crossed
    assert emulated.trace.frame[TASK].equals(simulated.frame[TASK].astype({"bytes": int}))


def bytes_by_link(table: pd.DataFrame) -> dict[Any, float]:
    return dict(table.groupby(["source", "destination", "purpose"])["bytes"].sum().items())


def test_a_forward_under_a_backward_waits_and_gives_as_it_is_simulated_to() -> None:
    """The pair begins with the data of both, and what it gives leaves at its end."""
    layer = LayerProfile("layer", 8 * MS, 16 * MS, output_bytes=4)
    schedule = parse("""
        worker 0 | F0 F1 . . . . B0 . . B1^
        worker 1 | . F0 F1& B0 - . . B1 -^
        """)
    times = {}
    for trace in (
        simulate(schedule, Profile((layer,) * 2), overlap=0.5),
        emulate(schedule, Profile((layer,) * 2), overlap=0.5).trace,
    ):
        frame = trace.frame.set_index(["stage", "op", "microbatch"])
        start = frame["start_s"].min()
        times[trace.label] = (frame["start_s"] - start, frame["end_s"] - start)
    for simulated, emulated in zip(*times.values(), strict=True):
        emulated = emulated.reindex(simulated.index)
        assert (emulated > simulated - 0.3 * MS).all()
    starts = times["emulated"][0]
    assert starts[0, "BACKWARD", 0] >= starts[1, "FORWARD", 1] + 12 * MS - 0.3 * MS


@pytest.mark.parametrize("make", [dualpipe, dualpipe_v])
def test_overlaps_change_nothing_but_times(make: Any) -> None:
    schedule, profile = make(4, 8), Profile.uniform(4, 0.1 * MS, 0.1 * MS, output_bytes=40)
    run, simulated = emulate(schedule, profile, overlap=0.5), simulate(schedule, profile)
    assert run.trace.frame[TASK].to_numpy().tolist() == simulated.frame[TASK].to_numpy().tolist()
    assert run.peak_in_flight == check(schedule).peak_in_flight
