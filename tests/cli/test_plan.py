"""``pipekit plan`` and ``pipekit search``, as a user types them."""

from pathlib import Path

import pytest

import pipekit as pk
from pipekit import Plan, Profile, plan
from pipekit.clusters import flat, pipedream_a, two_bw_v100
from pipekit.schedules.schedule import read_csv
from tests.cli.conftest import Printed

PROFILE = Profile.uniform(6, 0.1, 0.2, output_bytes=1e6, parameter_bytes=50e6)
SEARCHED = Profile.uniform(4, 0.01, 0.02, output_bytes=1e6, parameter_bytes=2e6)


@pytest.fixture(autouse=True)
def profiles(elsewhere: Path) -> None:
    PROFILE.save("p.json")
    SEARCHED.save("s.json")


def test_a_named_cluster(printed: Printed) -> None:
    best = plan(PROFILE, pipedream_a(4))
    text = printed("plan p.json --cluster pipedream-a --workers 4 --output new/plan.json")
    assert text == (
        f"{best}\n  simulated, on Cluster-A; the costs of the 6 layers are exact\n"
        "wrote new/plan.json\n"
    )
    assert Plan.load("new/plan.json") == best


def test_a_cluster_described_by_its_numbers(printed: Printed) -> None:
    best = plan(PROFILE, flat(4, 1.25e9, 16e9), optimizer_states=2)
    line = "plan p.json --workers 4 --bandwidth 1.25e9 --memory 16e9"
    assert str(best) in printed(f"{line} --optimizer-states 2")
    plain = plan(PROFILE, flat(4, 1.25e9, 16e9), optimizer_states=0)
    assert str(plain) in printed(f"{line} --optimizer-states 0")


def test_every_method(printed: Printed) -> None:
    straight = plan(PROFILE, pipedream_a(4), replicate=False)
    assert str(straight) in printed("plan p.json --cluster pipedream-a --workers 4 --straight")
    parallel = plan(PROFILE, two_bw_v100(1), "parallel_pipelines", max_batch=64)
    line = "plan p.json --cluster 2bw-v100 --workers 8 --method parallel_pipelines --max-batch 64"
    assert str(parallel) in printed(line)
    balanced = plan(PROFILE, flat(4, 1e9), "balance", stages=2)
    line = "plan p.json --workers 4 --bandwidth 1e9 --method balance --stages 2"
    assert str(balanced) in printed(line)
    line = "plan p.json --workers 2 --bandwidth 1e9 --method interleaved --chunks 2"
    text = printed(line)
    assert "idle" not in text
    assert "if the layers are a transformer's embedding, blocks and head:" in text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("p.json", "name a --cluster, or describe one by --workers and --bandwidth"),
        ("p.json --cluster pipedream", "not 'pipedream'; did you mean 'pipedream-a'?"),
        ("p.json --cluster local --memory 5", "in place of --cluster"),
        ("p.json --cluster 2bw-v100 --workers 9", "ask for 16 workers in place of 9"),
        ("p.json --workers 2 --bandwidth 0", "must be above zero"),
        ("p.json --workers 2 --bandwidth 1e9 --memory 5", "give each at least 601,000,000 bytes"),
        ("p.json --cluster pipedream-a --max-batch 8", "pipedream has no option 'max_batch', only"),
        ("p.json --cluster pipedream-a --method balance", "use at most 6 stages"),
        ("missing.json --cluster pipedream-a", "no file missing.json, which should be a profile"),
    ],
)
def test_wrong_input_gets_one_sentence(line: str, says: str, refused: Printed) -> None:
    assert says in refused(f"plan {line}")


def test_what_is_found_is_written_and_read_back(printed: Printed) -> None:
    line = "search s.json --microbatches 4 --workers 2 --placement 0,1,1,0 --bandwidth 1e9"
    text = printed(f"{line} --seconds 0.3 --output found.csv")
    found = read_csv("found.csv")
    assert found.stage_workers == ((0,), (1,), (1,), (0,))
    links = pk.clusters.flat(2, 1e9)
    seconds = pk.simulate(found, SEARCHED, Plan.by_hand([1] * 4), links).makespan_s
    assert f"{seconds * 1e3:.4g} ms (simulated), found" in text
    assert "none takes less than" in text
    assert text.endswith("wrote found.csv\n")


def test_what_does_not_fit_offloads_over_the_hosts_link(printed: Printed) -> None:
    Profile.uniform(8, 1.0, 2.0, output_bytes=10.0).save("s.json")
    line = "search s.json --stages 8 --workers 4 --microbatches 8 --memory 80 --seconds 0"
    assert printed(line).startswith("V-Min: 59 s")
    text = printed(f"{line} --host-bandwidth 20 --output found.svg")
    assert "offloading: 51 s" in text
    assert text.endswith("wrote found.svg\nwrote found.csv\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("s.json --placement 0,1,x,0", "the worker of each stage, as 0,1,1,0, not '0,1,x,0'"),
        ("s.json --placement 0,1,1 --workers 2", "a worker for each of 4 stages"),
        ("s.json --workers 5", "use at most as many workers as stages"),
        ("s.json --memory 1000 --seconds 0", "the most frugal method needs"),
        ("s.json --memory 0 --seconds 0", "memory_cap is a number of bytes"),
        ("s.json --output found.png", "--output must end in .csv, .svg, .html"),
    ],
)
def test_wrong_input_of_a_search_is_one_sentence(refused: Printed, line: str, says: str) -> None:
    assert says in refused(f"search {line}")
