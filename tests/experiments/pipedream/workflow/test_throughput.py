import pandas as pd
import pytest

from experiments.pipedream.workflow import throughput as checks
from pipekit.clusters import flat
from pipekit.profiling import Profile


def test_throughput_is_one_over_a_where_links_are_free() -> None:
    profile = Profile.uniform(4, 1.0, 2.0, output_bytes=1.0, parameter_bytes=100.0)
    row = checks.throughput_row("four layers", profile, flat(4, 1.0), replicate=False)
    assert (row["plan"], row["kind"], row["A (ms)"]) == ("1-1-1-1", "straight", 3000)
    assert row["free links"] == pytest.approx(1)
    assert row["PipeDream"] == pytest.approx(3 / (3 + 6 * 1 / 4))
    assert row["links as stages"] > 0.9


def test_the_finding_is_the_plan_farthest_from_its_promise() -> None:
    rows = {
        "kind": ["straight", "straight", "replicated"],
        "PipeDream": [0.99, 0.7, 1.2],
        "free links": [1, 1, 0.9],
        "links as stages": [1, 0.98, 1],
        "network": "vgg16",
        "plan": ["1-1", "1-1-1", "2-1"],
        "A (ms)": [1.0, 2.0, 3.0],
    }
    table = pd.DataFrame(rows)
    found = checks.finding(table)
    assert found.value == [0.7, 1.2]
    assert [cause.value for cause in found.causes] == [[0.98, 1.0], [1.0, 0.9]]
    assert found.note.startswith("3 plans for the paper's networks and clusters, 1 of them")
    assert checks.points(table)["simulated (ms)"].tolist()[:2] == [1 / 0.99, 2 / 0.7]
