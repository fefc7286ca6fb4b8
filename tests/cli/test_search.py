"""``pipekit search``, as a user types it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pipekit as pk
from pipekit import Plan, Profile
from pipekit.schedules.schedule import read_csv

Printed = Callable[[str], str]
PROFILE = Profile.uniform(4, 0.01, 0.02, output_bytes=1e6, parameter_bytes=2e6)


@pytest.fixture(autouse=True)
def profile(elsewhere: Path) -> None:
    PROFILE.save("p.json")


def test_what_is_found_is_written_and_read_back(printed: Printed) -> None:
    line = "search p.json --microbatches 4 --workers 2 --bandwidth 1e9 --seconds 0.3"
    text = printed(f"{line} --output found.csv")
    found = read_csv("found.csv")
    links = pk.clusters.flat(2, 1e9)
    seconds = pk.simulate(found, PROFILE, Plan.by_hand([1] * 4), links).makespan_s
    assert f"{seconds * 1e3:.4g} ms (simulated), found" in text
    assert "none takes less than" in text
    assert text.endswith("wrote found.csv\n")


def test_everything_is_in_the_json(printed: Printed) -> None:
    printed("search p.json --placement 0,1,1,0 --workers 2 --seconds 0.2 --output found.json")
    record = json.loads(Path("found.json").read_text())
    assert record["stage_workers"] == [[0], [1], [1], [0]]
    assert record["bound_s"] <= record["makespan_s"]
    assert record["gap"] == record["makespan_s"] / record["bound_s"] - 1
    assert len(record["peak_bytes"]) == 2
    assert record["step"] >= 0
    Path("again.csv").write_text(record["schedule"])
    assert read_csv("again.csv").stage_workers == ((0,), (1,), (1,), (0,))


def test_what_does_not_fit_offloads_over_the_hosts_link(printed: Printed) -> None:
    Profile.uniform(8, 1.0, 2.0, output_bytes=10.0).save("p.json")
    line = "search p.json --stages 8 --workers 4 --microbatches 8 --memory 80 --seconds 0"
    assert printed(line).startswith("V-Min: 59 s")
    assert "offloading: 51 s" in printed(f"{line} --host-bandwidth 20 --output found.svg")


def test_the_timeline_is_drawn(printed: Printed) -> None:
    assert "wrote t.svg" in printed("search p.json --stages 2 --seconds 0.1 --output t.svg")
    assert Path("t.csv").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("p.json --placement 0,1,x,0", "the worker of each stage, as 0,1,1,0, not '0,1,x,0'"),
        ("p.json --placement 0,1,1 --workers 2", "a worker for each of 4 stages"),
        ("p.json --workers 5", "use at most as many workers as stages"),
        ("p.json --memory 1000 --seconds 0", "the most frugal method needs"),
        ("p.json --output found.png", "--output must end in .csv, .json, .svg, .html"),
        ("missing.json", "missing.json"),
    ],
)
def test_wrong_input_is_one_sentence(refused: Printed, line: str, says: str) -> None:
    assert says in refused(f"search {line}")
