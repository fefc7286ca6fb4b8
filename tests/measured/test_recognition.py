"""The order of tasks names the method, whatever the times, in torch's profiles too; no other is named."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pipekit as pk
from pipekit import schedules
from pipekit.measured import recognise
from pipekit.names import TABLES
from pipekit.schedules import Schedule, ScheduleError
from pipekit.schedules.methods.by_name import PER_MINIBATCH
from pipekit.schedules.methods.by_name import TABLES as BY_NAME
from pipekit.traces import Trace
from tests.engine.gloo import over_gloo
from tests.measured import recordings


@cache
def _taken(name: str, workers: int, microbatches: int) -> Schedule | None:
    """Return some batches of a method, if it can be had on so many workers."""
    try:
        schedule = BY_NAME[name](workers * TABLES[name].stages_a_worker, microbatches)
    except ScheduleError:
        return None
    if schedule.worker_count != workers:
        return None
    return schedule.take(2 * microbatches if name in PER_MINIBATCH else 2)


def _same_order(name: str, workers: int, microbatches: int, transfers: bool) -> list[str]:
    """Return the methods with the same tasks in the same order, as docs/methods.md lists them."""
    own = _taken(name, workers, microbatches)
    assert own is not None

    def order(schedule: Schedule | None) -> object:
        return schedule and [
            [(*task[:3], schedule.chunks) for task in tasks if transfers or not task.op.stream]
            for tasks in schedule.workers
        ]

    return [
        each
        for each in TABLES
        if (each in PER_MINIBATCH) == (name in PER_MINIBATCH)
        and order(_taken(each, workers, microbatches)) == order(own)
    ]


@pytest.mark.parametrize(
    ("workers", "microbatches", "transfers"),
    [
        (2, 4, True),
        (3, 8, False),
        (4, 8, True),
        (8, 16, False),
    ],
)
def test_jittered_runs_are_named_with_all_that_have_their_order(
    workers: int, microbatches: int, transfers: bool
) -> None:
    for name in TABLES:
        schedule = _taken(name, workers, microbatches)
        if schedule is None:
            continue
        trace = recordings.simulated(schedule, seed=workers, jitter=0.1)
        found = recognise(trace if transfers else replace(trace, transfers=None))
        same = _same_order(name, workers, microbatches, transfers)
        assert [found.method, *found.also] == same
        assert (found.workers, found.edits) == (workers, 0)


@pytest.mark.parametrize(
    "name", ["gpipe", "pipedream", "interleaved", "zb-v", "chimera", "seq1f1b", "bpipe"]
)
def test_a_shuffled_table_is_unknown(name: str) -> None:
    schedule = _taken(name, 4, 8)
    assert schedule is not None
    trace = Trace.from_schedule(schedule)
    order = np.random.default_rng(0).permutation(len(trace.frame))
    shuffled = trace.frame.assign(start_s=trace.frame["start_s"].to_numpy()[order])
    assert recognise(replace(trace, frame=shuffled)).method == "unknown"


def test_a_method_of_which_some_ops_come_later_is_named() -> None:
    """PipeFisher inverts when curvatures of two batches are there."""
    trace = recordings.simulated(schedules.pipefisher(2, 6).take(2))
    assert "INVERSION" not in set(trace.frame["op"])
    assert recognise(trace).method == "pipefisher"


def test_a_few_moved_tasks_are_counted() -> None:
    trace = Trace.from_schedule(schedules.flush(4, 16).take(1))
    rows = trace.frame.query("worker == 0").index[8:10]
    frame = trace.frame.copy()
    frame.loc[rows, "start_s"] = frame.loc[rows, "start_s"].to_numpy()[::-1]
    found = recognise(replace(trace, frame=frame))
    assert (found.method, found.edits) == ("flush", 1)


@pytest.mark.parametrize("name", ["gpipe", "looped-bfs"])
def test_backwards_may_begin_with_the_last_microbatch(name: str) -> None:
    """As torch's ScheduleLoopedBFS runs them."""
    schedule = _taken(name, 2, 4)
    assert schedule is not None
    frame = Trace.from_schedule(schedule).frame.query("microbatch < 4 and op != 'UPDATE'")
    turned = frame["microbatch"].where(frame["op"] == "FORWARD", 3 - frame["microbatch"])
    found = recognise(Trace(frame.assign(microbatch=turned), "exact", name, 2, "slots"))
    assert (found.method, found.edits) == (name, 0)


def test_model_chunks_and_replicas_are_counted() -> None:
    looped = schedules.interleaved(12, 8, workers=4).take(1)
    found = recognise(recordings.simulated(looped))
    assert (found.method, found.microbatches) == ("interleaved", 8)
    assert (found.stages, found.workers) == (12, 4)
    replicated = Trace.from_schedule(schedules.pipedream([2, 1, 1]).take(6))
    assert recognise(replicated).method == "pipedream"


@pytest.mark.parametrize("name", ["flush", "interleaved", "chimera", "zb-v"])
def test_recorded_ranks_may_have_any_order(name: str) -> None:
    schedule = BY_NAME[name](4 * TABLES[name].stages_a_worker, 8).take(1)
    frame = recordings.simulated(schedule).frame.query("op != 'UPDATE'").assign(step=0)
    frame["worker"] = frame["worker"].map({0: 2, 1: 0, 2: 3, 3: 1})
    steps = pd.DataFrame({"step": [0], "start_s": 0.0, "end_s": 1.0})
    assert recognise(Trace(frame, "measured", name, 4, steps=steps)).method == name


@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("name", ["seq1f1b", "terapipe"])
def test_chunks_of_sequences_may_be_recorded_as_microbatches(name: str, chunks: int) -> None:
    schedule = getattr(schedules, name)(4, 4, chunks=chunks).take(1)
    run = recordings.simulated(schedule)
    found = recognise(replace(run, chunks=1))
    assert (found.method, found.microbatches, found.chunks, found.edits) == (name, 4, chunks, 0)
    assert "method" not in {cause.kind for cause in pk.explain(run).causes}


def test_transfers_of_other_microbatches_than_a_method_moves_name_the_nearest() -> None:
    trace = Trace.from_schedule(schedules.bpipe(4, 8).take(1))
    assert trace.transfers is not None
    assert recognise(replace(trace, transfers=trace.transfers[2:])).method == "bpipe"
    assert recognise(replace(trace, transfers=trace.transfers[:2])).method == "flush"


NAMED = {
    "GPipe": "gpipe",
    "1F1B": "flush",
    "LoopedBFS": "looped-bfs",
    "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "interleaved-zero-bubble",
    "ZBVZeroBubble": "zb-v",
}


@pytest.mark.long
def test_every_pass_is_found_and_the_method_named(tmp_path: Path) -> None:
    from tests.measured.torch_run import train  # with it torch's profiler and pipelining

    over_gloo(partial(train, tmp_path, list(NAMED)), 2)
    for schedule, method in NAMED.items():
        found = pk.explain(pk.read_trace(tmp_path / schedule))
        assert found.recognition.method == method
        assert (found.recognition.edits, found.recognition.microbatches) == (0, 8)
        assert sum(found.record()["shares"].values()) == pytest.approx(1.0)


def test_a_step_recorded_on_a_gpu_has_its_backwards() -> None:
    """Interleaved 1F1B of torch 2.11 on one H200: labels, launches and kernels of a step.

    torch's own spans on the GPU, which it has as well, are those of forwards alone.
    """
    found = pk.explain(pk.read_trace(Path(__file__).with_name("h200.json.gz")))
    about = found.recognition
    assert (about.method, about.stages, about.microbatches) == ("interleaved", 4, 8)
    assert found.record()["shares"]["compute"] > 0.8
