"""Modelled compute on the real engine: what is simulated, to the last digit, in a time of its own.

What a machine adds to it in real time, no test decides.
"""

from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from torch import nn

from pipekit import Pipeline, emulate, models, schedules, simulate
from pipekit.clusters import flat
from pipekit.clusters.papers import V100
from pipekit.emulation import stage
from pipekit.emulation.measured_host import gaps, host_from, longer
from pipekit.emulation.stage import Waiter
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile, TieProfile
from pipekit.schedules import Op, Schedule, check, flush, gpipe, pipedream, two_bw, zb_h2
from pipekit.simulation import Costs, Host
from pipekit.traces import Trace
from tests.emulation.own_time import own_time
from tests.schedules.strategies import training_methods

MS = 1e-3
TASK = ["worker", "stage", "op", "microbatch", "version", "bytes"]


def assert_the_same(emulated: Trace, simulated: Trace) -> None:
    """The same tasks at the same times."""
    one, other = emulated.frame, simulated.frame.astype({"bytes": int})
    pd.testing.assert_frame_equal(one[TASK], other[TASK])
    times = ["start_s", "end_s"]
    np.testing.assert_allclose(one[times].to_numpy(), other[times].to_numpy(), rtol=0, atol=1e-12)


@given(training_methods)
def test_it_does_what_is_simulated(schedule: Schedule) -> None:
    profile = Profile.uniform(schedule.stages, MS, 2 * MS, output_bytes=40)
    with own_time():
        run = emulate(schedule, profile)
    assert_the_same(run.trace, simulate(schedule, profile))
    report = check(schedule)
    assert run.weight_slots == report.peak_versions
    assert run.peak_in_flight == report.peak_in_flight


@pytest.mark.parametrize("schedule", [two_bw(3, 3).take(3), zb_h2(3, 4).take(2), pipedream([2, 1])])
def test_tasks_that_take_other_times_do_so(schedule: Schedule) -> None:
    """A slow worker, a long microbatch, and one forward and one update by themselves."""
    layer = LayerProfile("layer", MS, 2 * MS, 40.0, update_s=MS)
    own = {(0, Op.FORWARD, 0, 2): 5 * MS, (1, Op.UPDATE, 1, 2): 3 * MS}
    profile = Profile((layer,) * schedule.stages)
    costs = Costs(profile, workers={0: 1.5}, microbatches={1: 2.0}, tasks=own)
    with own_time():
        run = emulate(schedule, costs)
    assert_the_same(run.trace, simulate(schedule, costs))


def test_sixteen_workers_sleep_as_long_as_they_would_compute() -> None:
    """For real: whatever else the machine does, no worker is through before."""
    schedule, profile = (
        two_bw(16, 16).take(2),
        Profile.uniform(16, 0.1 * MS, 0.2 * MS, output_bytes=400),
    )
    run = emulate(schedule, profile)
    assert run.trace.label == "emulated"
    assert run.provenance["label"] == "emulated"
    by_worker = run.trace.frame.groupby("worker")
    spans = by_worker["end_s"].max() - by_worker["start_s"].min()
    assert (spans > 0.999 * 32 * 0.3 * MS).all()


def test_messages_take_the_time_of_the_slow_link() -> None:
    """1000 numbers of 4 bytes at 200 kB/s: 20 ms a message, 8 messages one after the other.

    For real: the receivers look for them, and wait for what is still on its way.
    """
    profile = Profile.uniform(2, MS, MS, output_bytes=4000)
    schedule, cluster = gpipe(2, 8).take(1), flat(2, 200e3)
    starts = emulate(schedule, profile, cluster=cluster).trace.frame.query(
        "stage == 1 and op == 'FORWARD'"
    )["start_s"]
    assert starts.iloc[0] >= 20 * MS
    assert starts.iloc[-1] >= 8 * 20 * MS


@pytest.mark.parametrize(
    "schedule", [gpipe(3, 3).take(2), two_bw(3, 3).take(3)], ids=["gpipe", "2bw"]
)
def test_updates_wait_for_the_gradients_that_stages_share(schedule: Schedule) -> None:
    """A worker's first update waits for all that have a copy; there are two ties, of 2 and of 3."""
    layers = [LayerProfile("layer", s * MS, 2 * s * MS, 4.0, 96.0, update_s=MS) for s in (1, 3, 2)]
    ties = TieProfile((0, 2), 48.0), TieProfile((0, 1, 2), 24.0)
    profile = Profile(tuple(layers), ties=ties)
    with own_time():
        run = emulate(schedule, profile)
    simulated = simulate(schedule, profile)
    assert_the_same(run.trace, simulated)
    assert simulated.transfers is not None
    assert bytes_by_link(run.traffic) == bytes_by_link(simulated.transfers)
    first = simulated.frame.query("op == 'UPDATE' and version == 1")
    assert first["start_s"].nunique() == 1
    alone = simulate(schedule, replace(profile, ties=()))
    assert alone.frame.query("op == 'UPDATE' and version == 1")["start_s"].nunique() == 3


def test_a_late_wait_shortens_the_next_for_a_right_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep that is 0.2 ms too long is so once, and not a hundred times."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds + 0.2 * MS

    times = SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(stage, "time", times)
    waiter = Waiter()
    for _ in range(100):
        waiter.wait(now[0], 0.5 * MS)
    assert now[0] == pytest.approx(50.2 * MS)


def test_the_gradients_of_replicas_take_their_time_on_the_links() -> None:
    """Two workers send each other half of the gradients, and then half of the sums."""
    profile = Profile((LayerProfile("layer", MS, MS, parameter_bytes=1e6),))
    schedule, cluster = pipedream([2]).take(8), flat(2, 50e6)
    with own_time():
        run = emulate(schedule, profile, cluster=cluster)
    assert run.traffic["bytes"].tolist() == [4e6, 4e6]
    assert run.trace.makespan_s == pytest.approx(4 * (2 + 20) * MS)
    assert_the_same(run.trace, simulate(schedule, profile, cluster=cluster))


def test_skips_cross_the_same_links_simulated_emulated_and_for_real() -> None:
    model, images = models.unet(1, 2), torch.rand(2, 3, 64, 64)
    profile = Profile.analytic(model, images, V100).scaled(1)
    plan, schedule = Plan.by_hand([2, 8, 7, 5]), flush(4, 2).take(1)
    real = Pipeline(
        model, schedule, balance=plan, optimizer=partial(torch.optim.SGD, lr=0.1), loss=nn.MSELoss()
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


def test_an_update_that_needs_all_workers_waits_for_them() -> None:
    schedule, profile = zb_h2(4, 7).take(3), Profile.uniform(4, MS, 2 * MS, output_bytes=40)
    with own_time():
        trace = emulate(schedule, profile, validate="first").trace
    assert_the_same(trace, simulate(schedule, profile, validate="first"))


def costs(message: float) -> Profile:
    return Profile(
        (
            LayerProfile("first", 1, 2, output_bytes=message, update_s=0.5),
            LayerProfile("last", 3, 6, update_s=0.5),
        )
    )


def test_a_host_is_found_again_from_the_gaps_of_its_own_runs() -> None:
    host = Host(
        pass_s=0.25,
        task_s=0.03,
        batch_s=0.05,
        send_s=0.02,
        send_byte_s=0.001,
        receive_s=0.04,
        receive_byte_s=0.002,
        wake_s=0.07,
    )
    sizes, split = (10.0, 80.0), Plan.by_hand([1, 1])
    found = []
    for size in sizes:
        frame = simulate(schedules.gpipe(2, 4).take(8), costs(size), host=host).frame
        found.append(gaps(frame) | {"pass": longer(frame, costs(size), split)})
    again = host_from(sizes, found)
    assert asdict(again) == pytest.approx(asdict(host))


def test_what_comes_out_below_nothing_counts_as_nothing() -> None:
    found = {"task": 1.0, "batch": 0.5, "send": 2.0, "receive": 0.5, "answer": 1.0, "pass": -1.0}
    larger = found | {"send": 1.5}
    assert host_from([1.0, 2.0], [found, larger]) == Host(task_s=1.0, send_s=1.0)
