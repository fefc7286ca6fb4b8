"""Predictions beside runs: what of an error comes from passes.  How good they are, no test says."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.prediction import (
    MethodCase,
    TrainedModel,
    cases,
    compared,
    predicted,
)
from pipekit import Profile
from pipekit.profiling import LayerProfile
from pipekit.simulation import Host


@pytest.fixture
def small() -> TrainedModel:
    torch.manual_seed(0)
    return TrainedModel(
        "small",
        nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)),
        torch.rand(8, 32),
        torch.rand(8, 32),
        nn.MSELoss(),
        torch.optim.SGD,
        0,
    )


def test_2bw_has_as_many_microbatches_as_stages_and_pipedream_cuts_no_minibatch() -> None:
    assert cases(["2bw", "pipedream"], [2, 8], [4], 3) == [
        MethodCase("2bw", 2, 4, 3),
        MethodCase("pipedream", 2, 1, 12),
        MethodCase("pipedream", 8, 1, 12),
    ]
    with pytest.raises(ValueError, match=r"method must be one of .*'flsh'; did you mean 'flush'"):
        cases(["flsh"], [2], [4], 3)


@pytest.mark.parametrize(
    ("loops", "slower", "outcome"),
    [
        ([1, 1.01, 1.01, 1.02], 1.015 / 1.005, "decided"),
        ([1, 1, 1.05, 1.05], 1.05, "undecided"),
        ([1] * 7 + [9, 1, 1], 1, "decided"),
        ([1, 1, 0.9, 1.1], 1, "undecided"),
    ],
    ids=["steady", "slower", "a single one is slower", "as fast, and not steady"],
)
def test_the_two_parts_make_up_the_error(
    small: TrainedModel,
    loops: list[float],
    slower: float,
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A case is decided if plain loops beside its runs are steady and as long as beforehand."""
    repeats, seconds = (len(loops) - 1) // 3, iter(loops)
    monkeypatch.setattr(TrainedModel, "plain_loop_s", lambda *_: next(seconds))
    layers = [(0.010, 0.020), (0.010, 0.020), (0.025, 0.050)]
    costs = Profile(tuple(LayerProfile(str(n), *both) for n, both in enumerate(layers)))
    monkeypatch.setattr(TrainedModel, "profiled", lambda *_: costs)
    hosts = {"threads": Host(task_s=1e-3)}
    case = [MethodCase("flush", 2, 2, 2)]
    promised = predicted(small, case, hosts, repeats, passes=1)
    table = compared(small, case, hosts, promised, repeats, passes=1)
    (row,) = table.to_dict("records")
    assert next(seconds, None) is None
    assert row["loops"] == pytest.approx(slower - 1)
    assert row["outcome"] == outcome
    if repeats == 1:  # else these are medians, each of another repeat
        parts = (1 + row["error of passes"]) * (1 + row["error between"])
        assert parts == pytest.approx(1 + row["error"])
        assert row["error"] == row["predicted (s)"] / row["found (s)"] - 1
        # A forward, four passes on the longer stage, a backward and an update; then the next batch,
        # whose update nobody waits for.
        bare = (1 + row["error without host"]) * row["found (s)"]
        assert row["predicted (s)"] - bare == pytest.approx((7 + 6) * 1e-3)
    assert row["counts agree"]


def test_predictions_of_before_count(small: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles that are taken beside the runs, or loops beside them, change no prediction."""
    costs = Profile(tuple(LayerProfile(str(n), 0.01, 0.02) for n in range(3)))
    monkeypatch.setattr(TrainedModel, "profiled", lambda *_: costs)
    monkeypatch.setattr(TrainedModel, "plain_loop_s", lambda *_: 1.0)
    case, hosts = [MethodCase("flush", 2, 2, 2)], {"threads": Host(task_s=1e-3)}
    promised = predicted(small, case, hosts, repeats=2, passes=1)
    doubled = [replace(layer, forward_s=0.02) for layer in costs.layers]
    monkeypatch.setattr(TrainedModel, "profiled", lambda *_: replace(costs, layers=tuple(doubled)))
    monkeypatch.setattr(TrainedModel, "plain_loop_s", lambda *_: 1.05)
    (row,) = compared(small, case, hosts, promised, 1, passes=1).to_dict("records")
    assert row["predicted (s)"] == promised["predicted (s)"].item()
    assert row["error"] == row["predicted (s)"] / row["found (s)"] - 1
    assert row["loops"] == pytest.approx(0.05)
    assert row["outcome"] == "undecided"
