"""Traces for Perfetto: they come back as they went, and torch's profiles lie beside them."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import record_function

from pipekit import Pipeline, Profile, schedules, simulate
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.schedules import OPS
from pipekit.traces import COLUMNS, RECOMPUTE, TRANSFERS, Trace
from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.perfetto import FIRST_PROCESS
from tests.hostile import damaged_json, read_or_refuse

WORKERS = 5
workers = st.integers(0, WORKERS - 1)
indices = st.integers(0, 10**9 - 1)
seconds = st.floats(-1e9, 1e9)
sizes = st.integers(0, 2**63 - 1) | st.floats(0, 1e18)
labels = st.sampled_from(["measured", "emulated", "simulated", "exact"])
tasks = st.tuples(
    workers,
    indices,
    st.sampled_from([*(op.name for op in OPS), RECOMPUTE]),
    *[indices, indices, seconds, seconds, sizes],
)
purposes = st.sampled_from(["activation", "gradient", "weights"])
messages = st.tuples(workers, workers, purposes, *[indices, indices, seconds, seconds, sizes])
held = st.tuples(workers, seconds, *[sizes] * len(PARTS))


def frames(rows: st.SearchStrategy[Any], columns: list[str]) -> st.SearchStrategy[pd.DataFrame]:
    return st.lists(rows, max_size=2).map(lambda each: pd.DataFrame(each, columns=columns))


traces = st.builds(
    Trace,
    frames(tasks, COLUMNS),
    labels,
    st.text(max_size=8),
    st.just(WORKERS),
    st.sampled_from(["s", "slots"]),
    st.none() | frames(messages, TRANSFERS),
    st.none() | st.builds(Memory, frames(held, ["worker", "time_s", *PARTS]), labels),
    st.none() | st.integers(0, 2**63 - 1),
)


def written(trace: Trace, path: Path, **options: Any) -> dict[str, Any]:
    trace.to_perfetto(path, **options)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def slices(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def assert_equal(one: Trace, other: Trace) -> None:
    for a, b in zip(_tables(one), _tables(other), strict=True):
        if a is None or b is None:
            assert a is b
        else:
            pd.testing.assert_frame_equal(a, b, check_exact=True, check_dtype=not a.empty)
    rest = [replace(trace, frame=None, transfers=None, memory=None) for trace in (one, other)]
    assert rest[0] == rest[1]
    assert (one.memory and one.memory.label) == (other.memory and other.memory.label)


def _tables(trace: Trace) -> list[pd.DataFrame | None]:
    return [trace.frame, trace.transfers, trace.memory and trace.memory.frame]


@given(trace=traces)
def test_what_is_written_comes_back(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "trace.perfetto.json"
    trace.to_perfetto(path)
    assert_equal(Trace.from_perfetto(path), trace)


@pytest.fixture(scope="module")
def simulated() -> Trace:
    costs = Profile.uniform(3, 0.01, 0.02, output_bytes=1e6, parameter_bytes=2e6)
    return simulate(schedules.pipedream([2, 1, 1]).take(8), costs, Plan.by_hand([1, 1, 1], replicas=[2, 1, 1]), flat(4, 1e7))  # fmt: skip


def test_an_event_of_a_gpipe_in_slots(tmp_path: Path) -> None:
    content = written(Trace.from_schedule(schedules.gpipe(2, 4).take(1)), tmp_path / "trace.json")
    event = next(event for event in slices(content) if event["name"] == "B3")
    row = {"worker": 0, "stage": 0, "op": "BACKWARD", "microbatch": 3, "version": 0}
    assert event == {
        "name": "B3",
        "cat": "compute",
        "ph": "X",
        "pid": FIRST_PROCESS,
        "tid": 0,
        "ts": 13e6,
        "dur": 2e6,
        "args": {**row, "start_s": 13, "end_s": 15, "bytes": 0},
    }
    assert content["otherData"]["schedule"] == "GPipe"
    assert content["otherData"]["label"] == "exact"


def test_an_arrow_goes_from_each_send_to_its_receive(simulated: Trace, tmp_path: Path) -> None:
    content = written(simulated, tmp_path / "trace.json")
    at = {(e["pid"], e["tid"], e["ts"], e["cat"]): e["args"] for e in slices(content)}
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in content["traceEvents"]:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
    assert simulated.transfers is not None
    assert len(arrows) == len(simulated.transfers)
    for start, finish in arrows.values():
        sent = at[start["pid"], start["tid"], start["ts"], "send"]
        received = at[finish["pid"], finish["tid"], finish["ts"], "receive"]
        assert sent == received
        assert start["pid"] == FIRST_PROCESS + sent["source"]
        assert finish["pid"] == FIRST_PROCESS + sent["destination"]


@given(
    spans=st.lists(st.tuples(workers, workers, st.integers(0, 20), st.integers(0, 9)), max_size=12)
)
def test_what_one_thread_shows_does_not_overlap(
    spans: list[tuple[int, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Perfetto draws slices of a thread that overlap, and do not nest, wrongly or not at all."""
    rows = [(a, b, "activation", 0, 0, float(s), float(s + d), 1) for a, b, s, d in spans]
    transfers = pd.DataFrame(rows, columns=TRANSFERS)
    trace = Trace(pd.DataFrame(columns=COLUMNS), "exact", "", WORKERS, transfers=transfers)
    path = tmp_path_factory.getbasetemp() / "trace.perfetto.json"
    threads: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for e in slices(written(trace, path)):
        threads.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"], e["cat"]))
    for shown in threads.values():
        shown.sort()
        assert all(end <= start for (_, end, _), (start, _, _) in pairwise(shown))
        assert len({cat for _, _, cat in shown}) == 1


def test_torchs_profile_lies_beside_a_run(tmp_path: Path) -> None:
    """The run's events are within what torch's profiler saw of its call, on one clock."""
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        schedules.gpipe(2, 2),
        optimizer=torch.optim.SGD,
        loss=nn.MSELoss(),
    )
    cpu = torch.profiler.ProfilerActivity.CPU
    pipeline.train([(torch.ones(2, 4), torch.ones(2, 4))])  # its threads are there already
    every = torch.profiler._ExperimentalConfig(profile_all_threads=True)  # type: ignore[attr-defined]
    profiling = torch.profiler.profile(activities=[cpu], experimental_config=every)
    with profiling as profiler, record_function("the call"):
        run = pipeline.train([(torch.ones(2, 4), torch.ones(2, 4))])
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    content = written(
        run.trace,
        tmp_path / "run.json",
        provenance=run.provenance,
        torch_profiles=[tmp_path / "torch.json"],
    )
    (call,) = (event for event in slices(content) if event["name"] == "the call")
    ours = [event for event in slices(content) if event["cat"] == "compute"]
    assert len(ours) == len(run.trace.frame)
    assert all(
        call["ts"] <= e["ts"] <= e["ts"] + e["dur"] <= call["ts"] + call["dur"] for e in ours
    )
    assert sum(event["name"] == "aten::linear" for event in slices(content)) == 4  # by two workers
    assert content["otherData"]["provenance"] == run.provenance
    assert_equal(Trace.from_perfetto(tmp_path / "run.json"), run.trace)


def test_a_simulation_has_no_place_beside_torchs_profile(simulated: Trace, tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text('{"baseTimeNanoseconds": 0, "traceEvents": []}')
    with pytest.raises(ValueError, match="is simulated and ran at no time"):
        simulated.to_perfetto(tmp_path / "x.json", torch_profiles=[tmp_path / "torch.json"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["tables"]["frame"].append([0, "0", "FORWARD", 0, 0, 0, 1, 0]), r"tables.frame\[10\]\[1\]: .*integer"),
        (lambda c: c["tables"]["frame"].append([0, 0, "F", 0, 0, 0, 1, 0]), r"tables.frame\[10\]\[2\]: .*no op 'F'"),
        (lambda c: c["otherData"].update(label="paper"), "otherData.label: "),
    ],
)  # fmt: skip
def test_the_error_names_the_row(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    content = written(Trace.from_schedule(schedules.gpipe(2, 2).take(1)), path)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"trace\.json is not a trace that pipekit wrote: " + message
    ):
        Trace.from_perfetto(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, simulated: Trace) -> dict[str, Any]:
    few = replace(simulated, frame=simulated.frame[:1], transfers=simulated.transfers[:1])  # type: ignore[index]
    return written(few, tmp_path_factory.mktemp("good") / "trace.json")


@given(data=st.data())
def test_whatever_stands_in_a_file_it_is_a_trace_or_refused(
    data: st.DataObject, good: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "trace.perfetto.json"
    read_or_refuse(Trace.from_perfetto, data.draw(damaged_json(good)), path)
