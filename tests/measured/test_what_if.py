"""Faults put into simulated runs are found, with what the run without them saves."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipekit as pk
from pipekit import schedules
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule
from tests.measured import recordings, slow_runs
from tests.measured.slow_runs import METHODS, case, emulated, simulated

EMULATED = (0, 3)
LONG = slow_runs._unequal(np.where(np.isin(np.arange(16), (2, 3, 10)), 3.0, 1.0) / 1.375, "")
SLOW = slow_runs.Fault("slow worker", [{"worker": 1}], "", lambda w, *_: 1.4 if w else 1.0)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5, 8, 11, 12])  # every fault, and every cause
def test_a_fault_comes_first_and_saves_what_the_run_without_it_does(seed: int) -> None:
    found = case(seed, emulated if seed in EMULATED else simulated)
    assert found["right"], found
    assert found["near"], found


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        (schedules.chimera(4, 8).take(2), LONG),
        (schedules.dualpipe(4, 8).take(2), LONG),
        (schedules.replicate(schedules.flush(2, 8), 2).take(1), LONG),
        (schedules.flush(2, 4).take(3), SLOW),
    ],
)
def test_pipelines_that_meet_on_a_worker_and_few_workers(
    schedule: Schedule, fault: slow_runs.Fault
) -> None:
    alike, links = np.ones(len(schedule.dependencies.tasks)), slow_runs.LINKS
    bad, good = (slow_runs._costs(schedule, alike, t) for t in (fault.times, slow_runs.alike))
    found = slow_runs._judged(fault, schedule, (bad, links), (good, links), simulated)
    assert found["right"], found
    assert found["near"], found


@pytest.mark.parametrize("name", METHODS)
def test_a_replay_takes_what_the_run_took_and_shares_sum_to_it(name: str) -> None:
    trace = recordings.simulated(METHODS[name], 5, 0.2)
    found = pk.explain(trace)
    recorded = found.what_if
    replayed = recorded.last_ends_s(recorded.seconds[:, None])[0, 0]
    assert replayed == pytest.approx(trace.makespan_s, rel=0.002)
    six = ["compute", "waiting", "communication", "between_tasks", "between_steps", "optimizer"]
    np.testing.assert_allclose(found.shares[six].sum(axis=1), trace.makespan_s, rtol=1e-9)
    computed = trace.passes["end_s"] - trace.passes["start_s"]
    assert found.shares["compute"].sum() == pytest.approx(computed.sum())


def test_forwards_that_are_run_again_are_computing() -> None:
    schedule = schedules.flush(3, 6).take(2)
    layer = LayerProfile("", 0.01, 0.02, update_s=0.001)
    plan = Plan.by_hand([1] * 3, recompute="always")
    trace = pk.simulate(schedule, Profile((layer,) * 3), plan)
    found = pk.explain(trace)
    again = [12 * 0.01] * 3
    assert found.shares["recompute"].tolist() == pytest.approx(again)
    assert found.shares["compute"].tolist() == pytest.approx([12 * 0.03 + each for each in again])
    assert found.mean_shares["between_tasks"] == pytest.approx(0, abs=1e-9)
    assert found.simulated_s == pytest.approx(found.step_s, rel=1e-6)


def test_a_stage_that_takes_no_time_hides_no_cause() -> None:
    free = recordings.simulated(schedules.flush(4, 8).take(1), 0, 0.1, stages={1: 0.0, 2: 2.0})
    found = {cause.kind: cause.where for cause in pk.explain(free).causes}
    assert (found["unequal stages"], "noise" in found) == ({"stage": 2}, True)


def test_passes_that_vary_tell_how_heavy_a_stage_is() -> None:
    schedule = schedules.gpipe(3, 8).take(1)
    slow, usual = (recordings.simulated(schedule, 3, 0.1, stages=by) for by in ({0: 1.5}, {}))
    saves_s = pk.explain(slow).causes[0].saves_s
    assert saves_s == pytest.approx(slow.makespan_s - usual.makespan_s, rel=0.05)


def test_replicas_wait_for_the_slowest_of_them(tmp_path: Path) -> None:
    """One of two replicas has a slow worker; the other waits for it in the sum of gradients."""
    schedule = schedules.flush(3, 6).take(1)
    slow = recordings.simulated(schedule, workers={1: 1.5})
    path = recordings.bytedance([recordings.simulated(schedule), slow], tmp_path / "a.parquet")
    found = pk.explain(pk.read_trace(path))
    assert (found.causes[0].kind, found.causes[0].where) == ("slow worker", {"worker": 4})
    assert found.mean_shares["sum"] > 0.05
    assert found.recognition.method == "flush"


def test_a_pipeline_of_longer_microbatches_has_no_slow_workers(tmp_path: Path) -> None:
    schedule = schedules.flush(3, 6).take(1)
    lengths = np.random.default_rng(0).uniform(0.4, 1.6, (3, 6))
    faults = (slow_runs._unequal(own, "") for own in [*lengths / lengths.mean(), np.ones(6)])
    alike = np.ones(len(schedule.dependencies.tasks))
    costs = (slow_runs._costs(schedule, alike, fault.times) for fault in faults)
    *runs, equal = (simulated(schedule, each, slow_runs.LINKS) for each in costs)
    found = pk.explain(pk.read_trace(recordings.bytedance(runs, tmp_path / "a.parquet")))
    lost = max(run.makespan_s for run in runs) - equal.makespan_s
    assert found.causes[0].kind == "unequal microbatches"
    assert found.causes[0].saves_s == pytest.approx(lost, rel=0.05)


def test_workers_of_a_ring_have_their_clocks_and_a_slow_one_no_heavy_stage(tmp_path: Path) -> None:
    """What the last worker sends the first is used much later, and says little of clocks."""
    ring = schedules.looped_bfs(6, 9, workers=3).take(1)
    run = recordings.simulated(ring, 0, 0.05, workers={1: 1.4})
    folder = recordings.kineto(run, tmp_path / "ranks", off_s=0.3, waits=True)
    found = pk.explain(pk.read_trace(folder))
    assert found.step_s == pytest.approx(run.makespan_s, rel=0.01)
    saved = {cause.kind: cause.saves_s for cause in found.causes}
    assert saved["slow worker"] > 5 * saved.get("unequal stages", 0.0)


@pytest.mark.parametrize("schedule", [schedules.flush(4, 8), schedules.gpipe(4, 8)])
def test_clocks_of_unequal_microbatches_are_aligned_without_an_invented_wait(
    schedule: Schedule, tmp_path: Path
) -> None:
    schedule = schedule.take(1)
    lengths = slow_runs._unequal(np.random.default_rng(4).uniform(0.4, 1.6, 8), "")
    costs = slow_runs._costs(schedule, np.ones(len(schedule.dependencies.tasks)), lengths.times)
    trace = simulated(schedule, costs, slow_runs.LINKS)
    read = pk.explain(pk.read_trace(recordings.primus(trace, tmp_path / "pp4")))
    assert read.causes[0].saves_s == pytest.approx(pk.explain(trace).causes[0].saves_s, rel=0.01)


@pytest.mark.parametrize("write", [recordings.kineto, recordings.primus])
@pytest.mark.parametrize(("make", "seed"), [(slow_runs.slow_link, 1), (slow_runs.heavy_stage, 0)])
def test_waits_within_spans_hide_neither_links_nor_stages(
    make: Any, seed: int, write: Any, tmp_path: Path
) -> None:
    """Not where each rank has a clock of its own, either, and a slow stage lets all others wait."""
    schedule = schedules.flush(4, 12).take(1)
    fault = make(np.random.default_rng(seed), schedule)
    jitter = np.random.default_rng(2).uniform(0.95, 1.05, len(schedule.dependencies.tasks))
    runs = [
        simulated(schedule, slow_runs._costs(schedule, jitter, times), links)
        for times, links in ((fault.times, fault.links), (slow_runs.alike, slow_runs.LINKS))
    ]
    path = write(runs[0], tmp_path / "ranks", waits=True)
    first = pk.explain(pk.read_trace(path)).causes[0]
    assert (first.kind, first.where in fault.where) == (fault.kind, True)
    assert first.saves_s == pytest.approx(runs[0].makespan_s - runs[1].makespan_s, rel=0.05)


def test_messages_of_several_chunks_a_worker_find_their_passes(tmp_path: Path) -> None:
    schedule = schedules.interleaved(6, 6, workers=3).take(1)
    trace = recordings.simulated(schedule, 2, 0.2, bandwidth=2e8, stages={2: 2.0})
    path = recordings.bytedance([trace], tmp_path / "a.parquet")
    found = pk.explain(pk.read_trace(path))
    assert (found.recognition.method, found.recognition.stages) == ("interleaved", 6)
    last_pass = trace.frame.loc[trace.frame["op"] != "UPDATE", "end_s"].max()
    replayed = found.timeline(found.causes[0])
    assert replayed.makespan_s <= last_pass
    assert found.simulated_s == pytest.approx(found.step_s, rel=0.01)
    assert found.slowdowns["m_s"] > 1  # the published last stage is a worker, of all its chunks


def _measured(*parts: str) -> Path:
    folder = os.environ.get("PIPEKIT_MEASURED")
    if not folder:
        pytest.skip("PIPEKIT_MEASURED names no folder of public measurements")
    return Path(folder, *parts)


@pytest.mark.parametrize("job", ["ST", "SE"])
def test_published_slowdowns_are_found_again(job: str) -> None:
    """S, M_S and M_W of the published analysis, within 1 %; the step within 2 %."""
    folder = _measured("bytedance_traces")
    found = pk.explain(pk.read_trace(folder / f"trace-{job}.parquet"))
    published = json.loads((folder / f"result-{job}.json").read_text())
    assert found.slowdowns["slowdown"] == pytest.approx(published["blocking_slowdown"], rel=0.01)
    for name in "ms", "mw":
        value = next(
            number
            for key, number in json.loads((folder / f"{name}-{job}.json").read_text()).items()
            if key.lower() == name
        )
        assert found.slowdowns[f"m_{name[1]}"] == pytest.approx(value, rel=0.01)
    assert found.simulated_s == pytest.approx(found.step_s, rel=0.01)


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("primus_traces/pp8", "flush"),
        ("megatronapp_traces/data-1-pipeline-4-tensor-1-pp-aggregated.json", "interleaved"),
    ],
)
def test_published_steps_are_replayed_from_durations(path: str, method: str) -> None:
    found = pk.explain(pk.read_trace(_measured(path)))
    assert found.recognition.method == method
    assert found.simulated_s == pytest.approx(found.step_s, rel=0.01)
