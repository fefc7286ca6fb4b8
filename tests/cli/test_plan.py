"""``pipekit plan``, as a user types it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipekit import Plan, Profile, plan
from pipekit.clusters import flat, pipedream_a, two_bw_v100

Printed = Callable[[str], str]

PROFILE = Profile.uniform(6, 0.1, 0.2, output_bytes=1e6, parameter_bytes=50e6)


@pytest.fixture(autouse=True)
def profile(elsewhere: Path) -> None:
    PROFILE.save("p.json")


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


def test_every_method(printed: Printed) -> None:
    straight = plan(PROFILE, pipedream_a(4), replicate=False)
    assert str(straight) in printed("plan p.json --cluster pipedream-a --workers 4 --straight")
    parallel = plan(PROFILE, two_bw_v100(1), "parallel_pipelines", max_batch=64)
    line = "plan p.json --cluster 2bw-v100 --workers 8 --method parallel_pipelines --max-batch 64"
    assert str(parallel) in printed(line)
    balanced = plan(PROFILE, flat(4, 1e9), "balance", stages=2)
    line = "plan p.json --workers 4 --bandwidth 1e9 --method balance --stages 2"
    assert str(balanced) in printed(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("p.json", "name a --cluster, or describe one by --workers and --bandwidth"),
        ("p.json --cluster pipedream-c", "cluster must be one of pipedream-a, "),
        ("p.json --cluster local --memory 5", "in place of --cluster"),
        ("p.json --cluster 2bw-v100 --workers 9", "ask for 16 workers in place of 9"),
        ("p.json --workers 2 --bandwidth 0", "must be above zero"),
        ("p.json --workers 2 --bandwidth 1e9 --memory 5", "give each at least 601,000,000 bytes"),
        ("p.json --cluster pipedream-a --method luck", "method must be one of pipedream"),
        ("p.json --cluster pipedream-a --max-batch 8", "pipedream has no option 'max_batch', only"),
        ("p.json --cluster pipedream-a --method balance", "use at most 6 stages"),
        ("missing.json --cluster pipedream-a", "no file missing.json, which should be a profile"),
    ],
)
def test_wrong_input_gets_one_sentence(line: str, says: str, refused: Printed) -> None:
    assert says in refused(f"plan {line}")
