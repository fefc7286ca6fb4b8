"""Predictions beside runs: what the tables hold.  How good they are, no test decides."""

import pandas as pd
import pytest
import torch
from torch import nn

from experiments.prediction import runs as prediction
from experiments.prediction.runs import MethodCase, TrainedModel, cases
from pipekit.clusters import flat
from pipekit.models import convnet
from pipekit.profiling import Profile
from pipekit.simulation import Host
from tests.emulation.own_time import own_time


@pytest.fixture(scope="module")
def task() -> TrainedModel:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return TrainedModel(
        "tiny",
        model,
        torch.rand(4, 8),
        torch.rand(4, 8),
        nn.MSELoss(),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        1,
    )


def test_2bw_has_as_many_microbatches_as_stages_and_pipedream_cuts_no_minibatch() -> None:
    assert cases(["2bw", "pipedream"], [2, 8], [4], 3) == [
        MethodCase("2bw", 2, 4, 3),
        MethodCase("pipedream", 2, 1, 12),
        MethodCase("pipedream", 8, 1, 12),
    ]
    with pytest.raises(ValueError, match=r"method must be one of .*'flsh'; did you mean 'flush'"):
        cases(["flsh"], [2], [4], 3)


def test_an_emulated_row_compares_the_same_schedule_on_the_same_links() -> None:
    profile = Profile.uniform(4, 0.004, 0.008, output_bytes=4000)
    with own_time():
        row = prediction.emulated_row("four", profile, MethodCase("gpipe", 2, 2, 1), flat(2, 1e6))
    # three turns of two layers each there and back, and two transfers of 4 ms
    assert row["predicted (s)"] == pytest.approx(3 * 2 * 0.012 + 2 * 0.004)
    assert row["found (s)"] == pytest.approx(row["predicted (s)"])
    assert row["spread"] == pytest.approx(0)
    assert row["error"] == row["predicted (s)"] / row["found (s)"] - 1
    assert (row["label"], row["links"], row["counts agree"]) == ("emulated", "0.008 Gbit/s", True)


def test_peak_bytes_of_a_real_run_are_predicted() -> None:
    images, digits = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
    task = TrainedModel("c", convnet(), images, digits, nn.CrossEntropyLoss(), torch.optim.Adam, 2)
    profile = prediction.profiled(task, 2, passes=1)
    row = prediction.memory_row(task, profile, MethodCase("flush", 2, 2, 2), "never")
    assert row["predicted (MB)"] == pytest.approx(row["found (MB)"], rel=0.05)


def test_of_several_profiles_each_number_of_seconds_is_the_median() -> None:
    costs = [
        Profile.uniform(2, forward, backward) for forward, backward in ((1, 9), (3, 5), (2, 4))
    ]
    both = prediction.middle(costs)
    assert [(x.forward_s, x.backward_s, x.backward_input_s) for x in both.layers] == [
        (2, 5, None)
    ] * 2


def test_every_cut_is_run_and_one_is_the_planners(task: TrainedModel) -> None:
    table = prediction.every_split(task, MethodCase("pipedream", 2, 1, 2), Host(), repeats=1)
    assert table["balance"].tolist() == ["1-2", "2-1"]
    assert table["chosen"].sum() == 1


def test_the_verdict_on_a_miss_is_a_miss() -> None:
    outcomes = ["decided", "decided", "undecided"]
    good = pd.DataFrame({"error": [0.01, -0.01, 0.9], "counts agree": True, "outcome": outcomes})
    bad = good.assign(**{"error": [0.01, -0.5, 0.9], "counts agree": [True, False, True]})
    splits = pd.DataFrame({"found (s)": [1.0, 1.04], "chosen": [False, True]})
    assert prediction.verdicts(good[:2], good, good[:2], splits)["reached"].all()
    reached = prediction.verdicts(good[:2], bad, good[:2], splits).set_index("what")["reached"]
    assert not reached["measured seconds, mean error"]
    assert not reached["measured seconds, worst error"]
    assert not reached["runs whose counts are not the schedule's"]
    assert reached["peak bytes, worst error"]
