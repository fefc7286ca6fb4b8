"""``pipekit simulate``, as a user types it."""

from pathlib import Path

import pandas as pd
import pytest

from pipekit import Plan, Profile
from pipekit.plans import StagePlan
from pipekit.schedules import chimera
from pipekit.traces import Trace
from tests.cli.conftest import Printed


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    Profile.uniform(4, 0.01, 0.02, output_bytes=1e6, parameter_bytes=2e6).save(path)
    return str(path)


def test_it_names_all_stages_of_a_worker(printed: Printed, profile: str) -> None:
    rows = printed(f"simulate interleaved {profile} --stages 4").splitlines()[-3:-1]
    assert [row.split("│")[2].strip() for row in rows] == ["0 2", "1 3"]


def test_a_global_stop_before_each_update_takes_time(printed: Printed, profile: str) -> None:
    command = f"simulate zb-h2 {profile} --microbatches 8 --batches 2"
    seconds = [
        float(printed(f"{command}{option}").split(": ")[1].split(" s")[0])
        for option in ("", " --validate later", " --validate first")
    ]
    assert seconds[0] == seconds[1] < seconds[2]


def test_it_prints_seconds_idle_time_and_peaks(printed: Printed, profile: str) -> None:
    text = printed(f"simulate gpipe {profile} --microbatches 8 --batches 1")
    assert (
        "GPipe: 0.33 s, 41.25 ms a microbatch of 1 row, bubble 27.3 % of makespan, 15.8 % of spans (simulated)"
        in text
    )
    assert "the costs of the 4 layers are exact" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("│")]
    sent, peaks = ([row[column] for row in rows] for column in (-4, -2))
    assert sent == ["8.0", "16.0", "16.0", "8.0"]  # MB: activations down, gradients up
    # 2 MB of weights; of 8 microbatches an input and an output of 1 MB each; and in the first
    # backward 2 MB of gradients in place of an output
    assert peaks == ["19.0"] * 4


def test_chunks_are_no_microbatches(printed: Printed, profile: str) -> None:
    text = printed(f"simulate terapipe {profile} --microbatches 8 --batches 1")
    assert "TeraPipe: 0.285 s, 35.63 ms a microbatch of 1 row" in text  # 19 halves of 30 ms for 8


def test_predicted_weights_take_memory(printed: Printed, profile: str) -> None:
    """2 MB of weights, and 2 MB of predicted ones."""
    line = f"simulate pipedream-no-stashing {profile} --batches 1"
    texts = [printed(f"{line}{more}") for more in ("", " --mitigation spectrain")]
    peaks = [
        [float(row.split()[-2]) for row in text.splitlines() if row.startswith("│")]
        for text in texts
    ]
    assert [more - less for less, more in zip(*peaks, strict=True)] == [2.0] * 4


def test_a_file_of_two_ways_needs_no_plan(printed: Printed, profile: str, tmp_path: Path) -> None:
    chimera(4, 4).take(1).to_csv(tmp_path / "mine.csv")
    named = printed(f"simulate chimera {profile} --microbatches 4 --batches 1")
    assert printed(f"simulate {tmp_path}/mine.csv {profile} --stages 2") in named


def test_a_plan_says_what_is_where_and_how_many_pipelines(
    printed: Printed, profile: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    Plan("mine", (StagePlan(0, 2, 3), StagePlan(2, 4, 3)), microbatches=2).save(plan)
    text = printed(f"simulate 2bw {profile} --plan {plan} --optimizer-states 2")
    assert "3 x PipeDream-2BW" in text
    assert [row.split()[1] for row in text.splitlines() if row[0] == "│"] == ["0-2", "3-5"]


def test_it_says_what_the_plan_predicts(printed: Printed, tmp_path: Path) -> None:
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    Profile.uniform(2, 0.01, 0.02, output_bytes=1e6).save(profile)
    Plan("mine", (StagePlan(0, 1), StagePlan(1, 2)), predicted_s=0.03).save(plan)
    line = f"simulate pipedream {profile} --plan {plan} --microbatches 1 --batches 8"
    text = printed(line)
    assert "33.75 ms a microbatch" in text  # and one more forward and backward before and after
    assert "the plan predicts 30 ms" in text


def test_stages_on_different_numbers_of_workers_are_pipedreams(
    printed: Printed, refused: Printed, profile: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    Plan("mine", (StagePlan(0, 2, 2), StagePlan(2, 4, 1))).save(plan)
    assert "PipeDream 2-1: " in printed(f"simulate pipedream {profile} --plan {plan}")
    says = "only PipeDream has stages on different numbers of workers"
    assert says in refused(f"simulate flush {profile} --plan {plan}")


def test_it_draws_the_timeline(printed: Printed, profile: str, tmp_path: Path) -> None:
    printed(f"simulate flush {profile} --output {tmp_path}/timeline.svg")
    assert "<svg" in (tmp_path / "timeline.svg").read_text()
    printed(f"simulate flush {profile} --output {tmp_path}/timeline.html")
    page = (tmp_path / "timeline.html").read_text()
    assert "PipeDream-Flush" in page
    assert "pipekitCanvas.draw" in page
    assert len(pd.read_csv(tmp_path / "timeline.csv")) == 4 * (8 * 4 * 2 + 4)


def test_it_writes_for_perfetto(printed: Printed, profile: str, tmp_path: Path) -> None:
    printed(f"simulate flush {profile} --batches 1 --output {tmp_path}/trace.perfetto.json")
    trace = Trace.from_perfetto(tmp_path / "trace.perfetto.json")
    assert (trace.name, trace.label, len(trace.frame)) == ("PipeDream-Flush", "simulated", 68)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"{}", b"9" * 5000])
def test_files_that_are_none_are_named_in_one_line(
    refused: Printed, profile: str, tmp_path: Path, content: bytes
) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(content)
    assert "other.json is not a profile: " in refused(f"simulate gpipe {other}")
    assert "other.json is not a plan: " in refused(f"simulate gpipe {profile} --plan {other}")


def test_what_does_not_fit_is_said(printed: Printed, refused: Printed, profile: str) -> None:
    command = f"simulate gpipe {profile} --bandwidth 1e9 --memory"
    assert "does not fit: it needs 19 MB, and its device has 9 MB" in printed(f"{command} 9e6")
    assert "does not fit" not in printed(f"{command} 9e9")
    assert "--memory and --shards are of links" in refused(f"simulate gpipe {profile} --memory 1")
    said = refused(f"simulate flush {profile} --output timeline.png")
    assert "must end in .svg, .html, .perfetto.json" in said


@pytest.mark.parametrize(
    ("method", "missing", "options"),
    [
        ("pipe-offload", "in a shell, --host-bandwidth", "--host-bandwidth 1e9"),
        ("sharded-bfs", "in a shell, --shards, and --bandwidth", "--shards 4 --bandwidth 1e9"),
    ],
)
def test_what_transfers_need_is_named(
    printed: Printed, refused: Printed, profile: str, method: str, missing: str, options: str
) -> None:
    command = f"simulate {method} {profile} --stages 4 --microbatches 4 --batches 1"
    assert missing in refused(command)
    assert "(simulated)" in printed(f"{command} {options}")
