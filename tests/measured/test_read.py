"""Every format, written here from a simulated run, is read back as that run."""

import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pipekit as pk
from pipekit import schedules
from tests.measured import recordings

Change = Callable[[list[dict[str, Any]]], list[Any]]
RUN = recordings.simulated(schedules.flush(3, 6).take(1), jitter=0.1)
WRITERS: dict[str, Callable[[Path], Path]] = {
    "pipekit": lambda folder: _ours(folder / "run.json"),
    "primus": lambda folder: recordings.primus(RUN, folder / "pp3"),
    "megatron-app": lambda folder: recordings.megatron_app(RUN, folder / "events.json"),
    "kineto": lambda folder: recordings.kineto(RUN, folder / "ranks"),
    "bytedance": lambda folder: recordings.bytedance([RUN], folder / "trace.parquet"),
}


def _ours(path: Path) -> Path:
    RUN.to_perfetto(path)
    return path


@pytest.mark.parametrize("name", WRITERS)
def test_the_passes_of_a_format_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    read = pk.read_trace(WRITERS[name](tmp_path))
    assert read.workers == RUN.workers
    found = read.frame[read.frame["op"] != "UPDATE"]
    if "step" in found:
        found = found[found["step"] == found["step"].max()]
    expected = recordings.passes(RUN)
    keys = ["worker", "stage", "op", "microbatch"]
    both = found.merge(expected, on=keys, suffixes=("", "_written"))
    assert len(both) == len(found) == len(expected)
    took = both["end_s"] - both["start_s"]
    np.testing.assert_allclose(took, both["end_s_written"] - both["start_s_written"], atol=1e-6)


def _named_by_the_handler(folder: Path) -> Path:
    """Name files as torch's tensorboard_trace_handler does, without distributedInfo."""
    for rank, file in enumerate(sorted(recordings.kineto(RUN, folder / "ranks").iterdir())):
        about = json.loads(file.read_text())
        del about["distributedInfo"]
        name = f"node{rank}_{4711 - rank}.17234567890.pt.trace.json"
        file.rename(file.with_name(name)).write_text(json.dumps(about))
    return folder / "ranks"


def _folders_with_other_files(folder: Path) -> Path:
    for file in sorted(recordings.kineto(RUN, folder / "ranks").iterdir()):
        (folder / "ranks" / file.stem).mkdir()
        file.rename(folder / "ranks" / file.stem / "trace.json")
        (folder / "ranks" / file.stem / "arguments.json").write_text('{"lr": 0.1}')
    return folder / "ranks"


def _ahead(folder: Path, by: Callable[[pd.DataFrame], Any]) -> Path:
    path = recordings.bytedance([RUN], folder / "trace.parquet")
    _rows(lambda rows: rows.assign(start_ts=rows["start_ts"] + by(rows)))(path)
    return path


def _app(folder: Path, change: Change) -> Path:
    """Record as MegatronApp does, events changed."""
    path = recordings.megatron_app(RUN, folder / "events.json")
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return path


def _replicas_on_clocks_apart(
    folder: Path, rank_us: float = 0.0, replica_us: float = 3.6e9
) -> Path:
    """Add a second pipeline beside the first: ranks 8 to 13 of more, as names number them."""
    found = recordings.kineto(RUN, folder / "ranks")
    for rank in range(RUN.workers):
        path = found / f"rank{rank}.json"
        events = json.loads(path.read_text())["traceEvents"]
        path.unlink()
        for replica in range(2):
            ahead = rank_us * rank + replica_us * replica
            own = [event | {"ts": event["ts"] + ahead} for event in events]
            path = found / f"trace_{8 + rank + replica * RUN.workers}.json"
            path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": own}))
    return found


def _compressed_in_folders(folder: Path) -> Path:
    found = recordings.megatron_app(RUN, folder / "events.json")
    (inner := folder / "a" / "b").mkdir(parents=True)
    (inner / "events.json.gz").write_bytes(gzip.compress(found.read_bytes()))
    found.unlink()
    return folder


def _tensor_parallel(folder: Path) -> Path:
    """Record both ranks of each stage, which have one data parallel rank."""
    path = recordings.bytedance([RUN], folder / "trace.parquet")
    _rows(lambda rows: pd.concat([rows, rows.assign(rank=rows["rank"] + 100)]))(path)
    return path


def _rewritten(folder: Path, change: Change) -> Path:
    """Record as torch does, each rank's events changed."""
    found = recordings.kineto(RUN, folder / "ranks")
    for path in found.iterdir():
        written = json.loads(path.read_text())
        path.write_text(json.dumps(written | {"traceEvents": change(written["traceEvents"])}))
    return found


def _begun_within_a_step(events: list[dict[str, Any]]) -> list[Any]:
    """Record two steps, the first from the third forward on."""
    begin = next(k for k, event in enumerate(events) if event["name"].endswith("F2"))
    return events[begin:] + [e | {"ts": e["ts"] + 1e6 * RUN.makespan_s} for e in events]


def _on_gpus(events: list[dict[str, Any]]) -> list[Any]:
    """Launch all of a pass at once, long before it runs; backwards from another thread.

    The profiler's own spans on the GPU lack backwards, and messages wait in kernels of their own.
    """
    found = []
    for number, label in enumerate(events):
        called = number * 10.0 - 1e4
        found.append(label | {"ts": called, "dur": 9.0})
        if "F" in label["name"]:
            found.append(label | {"cat": "gpu_user_annotation"})
        half = label["dur"] / 2
        for k, (name, begin, took) in enumerate(
            [("gemm", 0, 0.4 * half), ("gemm", half, half), ("ncclDevKernel_SendRecv", 0, 1e5)]
        ):
            about = {"ph": "X", "name": name, "args": {"correlation": 3 * number + k}}
            found.append(about | {"cat": "cuda_runtime", "ts": called + k, "dur": 1.0})
            found.append(about | {"cat": "kernel", "ts": label["ts"] + begin, "dur": took})
    return found


def _in_parts(events: list[dict[str, Any]]) -> list[Any]:
    """Split the last microbatch's backward, and no other."""
    *others, whole = sorted(events, key=lambda event: event["name"].endswith("B5"))
    half = whole["dur"] / 2
    names = [whole["name"].replace("B", part) for part in "IW"]
    parts = [
        whole | {"name": n, "dur": half, "ts": whole["ts"] + k * half} for k, n in enumerate(names)
    ]
    return others + parts


OTHERWISE = [
    *(partial(_rewritten, change=c) for c in (_begun_within_a_step, _on_gpus)),
    *(_replicas_on_clocks_apart, partial(_replicas_on_clocks_apart, rank_us=5e4, replica_us=1e5)),
    *(partial(recordings.kineto, RUN, **how) for how in ({"off_s": 3600.0}, {"waits": True})),
    *(_compressed_in_folders, _tensor_parallel),
    *(_named_by_the_handler, _folders_with_other_files),
    *(partial(_ahead, by=by) for by in (lambda _: 1.7e9, lambda rows: 3.6e3 * (rows["rank"] == 1))),
    partial(_app, change=lambda events: [e | {"ts": e["ts"] + 3e4 * e["pid"]} for e in events]),
    partial(_app, change=lambda events: [e for e in events if e["ph"] != "i"]),
]


@pytest.mark.parametrize("written", OTHERWISE)
def test_others_name_files_and_set_clocks_otherwise(
    written: Callable[[Path], Path], tmp_path: Path
) -> None:
    found = pk.explain(pk.read_trace(written(tmp_path)))
    assert found.recognition.method == "flush"
    assert found.step_s == pytest.approx(RUN.makespan_s, rel=0.05)  # without updates
    assert found.simulated_s == pytest.approx(found.step_s, rel=0.01)


def test_a_pass_on_a_gpu_takes_from_its_first_kernel_to_its_last(tmp_path: Path) -> None:
    read = pk.read_trace(_rewritten(tmp_path, _on_gpus))
    found, was = (
        np.sort(each["end_s"] - each["start_s"]) for each in (read.frame, recordings.passes(RUN))
    )
    np.testing.assert_allclose(found, was, atol=1e-9)


def test_a_backward_in_parts_is_not_a_cut_step(tmp_path: Path) -> None:
    read = pk.read_trace(_rewritten(tmp_path, _in_parts))
    assert len(read.frame) == 3 * (6 + 5 + 2)


def test_a_file_that_was_recorded_anew_is_read_anew(tmp_path: Path) -> None:
    path = recordings.megatron_app(RUN, tmp_path / "events.json")
    assert pk.read_trace(path).workers == RUN.workers
    other = recordings.simulated(schedules.flush(2, 6).take(1))
    assert pk.read_trace(recordings.megatron_app(other, path)).workers == 2


@pytest.mark.parametrize("off_s", [3600.0, 0.006])  # less than a pass takes
def test_clocks_are_aligned_by_messages_and_the_note_says_how_well(
    off_s: float, tmp_path: Path
) -> None:
    """Rank 1's clock is ahead; the passes come back where they were, within the width."""
    read = pk.read_trace(recordings.kineto(RUN, tmp_path / "ranks", off_s=off_s))
    (note,) = [each for each in read.notes if "clocks" in each]
    width = float(note.split("to within ")[1].split()[0])
    assert abs(float(note.split("by up to ")[1].split()[0]) - off_s) <= width
    keys = ["worker", "stage", "op", "microbatch"]
    both = read.frame.merge(recordings.passes(RUN), on=keys, suffixes=("", "_written"))
    assert (both["start_s"] - both["start_s_written"]).abs().max() <= width + 1e-6


def test_a_first_step_that_compiled_is_left_out_by_name(tmp_path: Path) -> None:
    folder = recordings.primus(RUN, tmp_path / "pp3")
    read = pk.read_trace(folder)
    assert "steps 1 to 3 are left out as warm-up" in read.notes[0]
    assert sorted(set(read.frame["step"])) == [4, 5, 6]
    for chosen, steps in (slice(2, 4), [2, 3]), (slice(-2, None), [5, 6]):
        assert sorted(set(pk.read_trace(folder, chosen).frame["step"])) == steps
    with pytest.raises(ValueError, match="has no step in 0:0"):
        pk.read_trace(folder, slice(0, 0))


def test_recorded_steps_are_not_one_run_and_the_refusal_says_whom_to_ask(tmp_path: Path) -> None:
    read = pk.read_trace(WRITERS["primus"](tmp_path))
    written = partial(read.to_perfetto, tmp_path / "run.json")
    for asked in (read.gaps, read.bubbles, read.breakdown, read.critical_path, written):
        with pytest.raises(ValueError, match=r"ask pk.explain\(trace\), whose timeline\(\)"):
            asked()
    assert len(pk.explain(read).timeline().gaps())


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _without_rank_1(folder: Path) -> None:
    next(folder.glob("*1.json")).unlink()


def _with_rank_3(folder: Path) -> None:
    (folder / "pp_rank_3.json").write_text("{}")


def _twice(folder: Path) -> None:
    (folder / "copy.json").write_text((folder / "rank0.json").read_text())


def _written(pattern: str, instead: str, files: str = "*") -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for file in folder.glob(files):
            file.write_text(re.sub(pattern, instead, file.read_text()))

    return damage


def _rows(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda path: change(pd.read_parquet(path)).to_parquet(path)


@pytest.mark.parametrize(
    ("form", "damage", "sentence"),
    [
        ("megatron-app", _cut, "events.json cannot be read as JSON.*cut off"),
        ("bytedance", _cut, "trace.parquet cannot be read as Parquet"),
        ("primus", _without_rank_1, "has no pp_rank_1.json: its config.json has 3 ranks"),
        ("primus", _with_rank_3, "has a pp_rank_3.json: its config.json has 3 ranks"),
        ("kineto", _without_rank_1, "has 2 of 3 ranks: add the files of the others"),
        ("kineto", _twice, "are both of rank 0"),
        ("kineto", _written('F0"', f'F{10**20}"'), "microbatches that are not whole numbers"),
        (
            "kineto",
            _written("[0-9]+[.][0-9e-]+", "1" * 400),
            "lacks what torch.profiler's JSON has",
        ),
        ("kineto", _written("(?s).*", "", "*2.json"), "rank2.json is empty: nothing was recorded"),
        ("primus", _written(r"(bwd[^[]*.)[^]]*", r"\1", "*k_1.json"), "lacks passes in each step"),
        ("primus", _written('"total": [0-9.]+', '"total": 0'), "has a step of 0 s: the file is da"),
        (
            "bytedance",
            _rows(lambda rows: rows.assign(duration=rows["duration"].where(rows.index != 3, -1.0))),
            "begins at .* and ends at .*: the file is damaged",
        ),
        ("bytedance", _rows(lambda rows: rows.drop(columns="duration")), "lacks the columns dur"),
        ("bytedance", _rows(lambda rows: rows.assign(dp_rank=-1)), "rows without a dp_rank, st"),
        ("bytedance", _rows(lambda rows: rows.query("stage < 2")), "behind its last stage"),
    ],
)
def test_a_damaged_file_gets_one_sentence_that_names_it(
    form: str, damage: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    path = WRITERS[form](tmp_path)
    damage(path)
    require_refusal(path, sentence)


def require_refusal(path: Path, sentence: str) -> None:
    with pytest.raises((ValueError, OSError), match=sentence) as caught:
        pk.read_trace(path)
    assert "\n" not in str(caught.value)


TIMERS = """\
 iteration 5/20 | elapsed time per iteration (ms): 2000.0 |
(min, max) time across ranks (ms):
    forward-compute ................................: (1201.43, 1399.04)
"""


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.json", "", "a.json is empty"),
        ("a.md", "# hello", "known format: Byte.*Megatron-LM.s logs"),
        ("a.json", "{}", "known format: Byte"),
        ("log.txt", TIMERS, "has Megatron's timers, which sum up all passes"),
        ("a.json", '{"schemaVersion": 1, "traceEvents": []}', "has no actions of a pipeline"),
        ("a.json", '[{"args": {"model_chunk": 0}}]', "no passes of MegatronApp's Chrome events"),
    ],
)
def test_no_trace_gets_one_sentence(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    require_refusal(tmp_path / name, sentence)


def test_what_lacks_a_pipeline_gets_one_sentence(tmp_path: Path) -> None:
    require_refusal(tmp_path / "none.json", "there is no .*none.json")
    require_refusal(tmp_path, "is an empty folder")
    one_stage = recordings.simulated(schedules.gpipe(1, 4).take(1))
    found = recordings.kineto(one_stage, tmp_path / "ranks")
    require_refusal(found, "has passes of less than two stages: it is cut off, or not of a pipel")
    path = recordings.bytedance([RUN, RUN], tmp_path / "a.parquet")
    _rows(lambda rows: rows.query("rank != 4"))(path)
    require_refusal(path, "has no passes of stage 1 in pipeline 1: the records of its rank are mis")


def test_a_step_that_lacks_passes_is_left_out(tmp_path: Path) -> None:
    lacks = iter([False, False, True])

    def twice(events: list[dict[str, Any]]) -> list[Any]:
        later = [event | {"ts": event["ts"] + 1e6} for event in events]
        return events + (later[:-2] if next(lacks) else later)

    read = pk.read_trace(_rewritten(tmp_path, twice))
    assert sorted(set(read.frame["step"])) == [0]
    assert "steps 1 lack passes: left out" in read.notes


def test_a_last_rank_that_is_missing_is_missed(tmp_path: Path) -> None:
    path = _app(tmp_path, lambda events: [event for event in events if event["pid"] < 2])
    assert "weights or missing ranks" in str(pk.explain(pk.read_trace(path)))
    named = path.rename(tmp_path / "data-1-pipeline-3-tensor-1-pp-aggregated.json")
    require_refusal(named, "has 2 of 3 ranks by its name")


def _each_second(*steps: Change) -> Change:
    def marked(events: list[dict[str, Any]]) -> list[Any]:
        mark = {"ph": "X", "cat": "user_annotation", "ts": 0.0, "dur": 1e6}
        return [
            event | {"ts": event["ts"] + number * 1e6}
            for number, step in enumerate(steps)
            for event in [*step(events), mark | {"name": f"ProfilerStep#{number}"}]
        ]

    return marked


def test_what_lies_between_steps_is_part_of_the_later_one(tmp_path: Path) -> None:
    found = pk.explain(pk.read_trace(_rewritten(tmp_path, _each_second(list, list, list))))
    assert found.step_s == pytest.approx(1.0)
    assert found.causes[0].kind == "between steps"


def test_an_evaluation_is_left_out(tmp_path: Path) -> None:
    def evaluated(events: list[dict[str, Any]]) -> list[Any]:
        again = [e | {"ts": e["ts"] + 5e5} for e in events if "F" in e["name"]]
        return events + again

    read = pk.read_trace(_rewritten(tmp_path, _each_second(list, evaluated, list)))
    assert sorted(set(read.frame["step"])) == [0, 2]
    assert "steps 1 have a pass twice, as with an evaluation: left out" in read.notes


def test_a_last_step_that_is_cut_off_does_not_shift_the_others(tmp_path: Path) -> None:
    """The second of two pipelines that meet has later microbatches, with which a step may begin."""
    run = recordings.simulated(schedules.dualpipe(2, 8).take(1))
    for path in recordings.kineto(run, tmp_path / "ranks").iterdir():
        written = json.loads(path.read_text())
        events = [event for event in written["traceEvents"] if event["name"].startswith("PP:")]
        later = [event | {"ts": event["ts"] + 2e6} for event in events]
        path.write_text(json.dumps(written | {"traceEvents": events + later[: len(later) // 2]}))
    assert pk.explain(pk.read_trace(tmp_path / "ranks")).recognition.method == "dualpipe"


def test_chunks_within_a_stage_are_enough(tmp_path: Path) -> None:
    looped = recordings.simulated(schedules.interleaved(6, 6, workers=3).take(1))
    whole = recordings.bytedance([looped, looped], tmp_path / "job.parquet")
    expected, rows = pk.read_trace(whole), pd.read_parquet(whole)
    rows.assign(mc=rows.pop("gmc") // 3).to_parquet(whole)
    pd.testing.assert_frame_equal(pk.read_trace(whole).frame, expected.frame)
    dumps = recordings.primus(looped, tmp_path / "pp3")
    (dumps / "config.json").write_text('{"pp_size": 3, "num_mbs": 6}')
    assert pk.explain(pk.read_trace(dumps)).recognition.method == "interleaved"


def test_labels_without_stages_are_said_to_have_none(tmp_path: Path) -> None:
    def plain(name: str) -> str:
        return name[4:].replace("F", "Forward ").replace("B", "Backward ")

    found = _rewritten(tmp_path, lambda events: [e | {"name": plain(e["name"])} for e in events])
    assert "do not name stages" in pk.read_trace(found).notes[0]
