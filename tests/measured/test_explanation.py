"""What is said of a trace: as text, as JSON, as a page, and beside another trace."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipekit as pk
from pipekit import schedules
from pipekit.cli import app
from pipekit.explore.why_page import html
from tests.measured import recordings

SLOW = recordings.simulated(schedules.flush(4, 8).take(1), jitter=0.02, stages={1: 1.5})
EVEN = recordings.simulated(schedules.flush(4, 8).take(1), jitter=0.02)


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_some_lines_say_method_time_and_what_would_be_saved(tmp_path: Path) -> None:
    said = _run(recordings.kineto(SLOW, tmp_path / "ranks")).splitlines()
    assert said[0] == "ranks: flush or bpipe: 4 stages on 4 workers, 8 microbatches"
    assert any(line.startswith("Stage 1 takes 5") and "would be saved" in line for line in said)
    assert len(said) <= 10


def test_the_record_has_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "new" / "why.json"
    _run(recordings.kineto(SLOW, tmp_path / "ranks"), "--json", path)
    record = json.loads(path.read_text())
    counts = {key: record[key] for key in ("method", "workers", "stages", "microbatches", "steps")}
    assert counts == {"method": "flush", "workers": 4, "stages": 4, "microbatches": 8, "steps": 1}
    assert sum(record["shares"].values()) == pytest.approx(1.0)
    assert sum(record["waiting"].values()) == pytest.approx(record["shares"]["waiting"])
    saved = [cause["saves_s"] for cause in record["causes"]]
    assert saved == sorted(saved, reverse=True)
    first = record["causes"][0]
    assert (first["kind"], first["where"]) == ("unequal stages", {"stage": 1})
    assert first["share"] == pytest.approx(first["saves_s"] / record["step_s"])
    slowdown = pk.explain(SLOW).slowdowns["t_ori_s"] / record["ideal_s"]
    assert record["slowdown"] == pytest.approx(slowdown, rel=0.01)


def test_kinds_whose_rows_were_all_left_out_change_nothing(tmp_path: Path) -> None:
    trace = pk.read_trace(recordings.bytedance([SLOW] * 3, tmp_path / "job.parquet"))
    assert trace.other is not None
    kinds = trace.other["kind"].cat.add_categories("first-op")
    wider = replace(trace, other=trace.other.assign(kind=kinds))
    assert str(pk.explain(wider)) == str(pk.explain(trace))


def test_chosen_steps_alone_are_used(tmp_path: Path) -> None:
    folder = recordings.primus(SLOW, tmp_path / "pp")
    path = tmp_path / "why.json"
    said = _run(folder, "--steps", "3:5", "--json", path)
    assert "Stage 1 or its worker takes 5" in said  # without updates nothing tells them apart
    assert json.loads(path.read_text())["steps"] == 2
    refused = CliRunner().invoke(app, ["explain", str(folder), "--steps", "3"])
    assert (refused.exit_code, "--steps is A:B" in refused.output) == (2, True)


def test_a_page_holds_the_step_and_the_step_without_its_cause() -> None:
    written = html(pk.explain(SLOW))
    assert written.count("without unequal stages") == 1
    told = "of waiting: drain", "<td>drain", "without between steps"  # in which nothing would move
    assert [each in written for each in told] == [True, False, False]
    assert "src=" not in written
    assert "http" not in written.replace("http://www.w3.org/2000/svg", "")


def test_a_step_without_its_cause_is_simulated_and_takes_what_is_said(tmp_path: Path) -> None:
    found = pk.explain(pk.read_trace(recordings.kineto(SLOW, tmp_path / "ranks")))
    recorded, without = found.timeline(), found.timeline(found.causes[0])
    assert (recorded.label, without.label) == ("measured", "simulated")
    saved = recorded.makespan_s - without.makespan_s
    assert saved == pytest.approx(found.causes[0].saves_s, rel=0.02)


def test_two_traces_are_compared(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    SLOW.to_perfetto(before)
    EVEN.to_perfetto(after)
    said = _run(before, after)
    assert "ms a step after" in said
    assert "unequal stages costs" in said


def test_a_drawn_schedule_has_no_seconds_to_explain() -> None:
    with pytest.raises(ValueError, match="is in slots: give a trace in seconds"):
        pk.explain(pk.Trace.from_schedule(schedules.flush(2, 4).take(1)))
    start, end = SLOW.frame["start_s"], SLOW.frame["end_s"]
    with pytest.raises(ValueError, match="takes no time: give its passes seconds"):
        pk.explain(replace(SLOW, frame=SLOW.frame.assign(end_s=start)))
    with pytest.raises(ValueError, match=f"of {SLOW.name} wait for one another in a circle"):
        pk.explain(replace(SLOW, frame=SLOW.frame.assign(start_s=-end, end_s=-start)))
    with pytest.raises(TypeError, match=r"trace must be a Trace, e.g. .* pk.read_trace\(path\)"):
        pk.explain("trace.json")  # type: ignore[arg-type]
