"""What of an error comes from passes, and what from between them."""

import pytest
import torch
from torch import nn

from experiments.prediction import causes
from experiments.prediction.causes import as_it_ran, compared, summary
from experiments.prediction.runs import MethodCase, TrainedModel
from pipekit import Profile, schedules, simulate
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile
from pipekit.simulation import Host


def test_a_run_whose_passes_are_known_is_simulated_as_it_was() -> None:
    costs = Profile(
        tuple(
            LayerProfile(str(n), f, b, update_s=u)
            for n, (f, b, u) in enumerate([(1, 3, 1), (2, 4, 2)])
        )
    )
    schedule = schedules.flush(2, 4).take(3)
    trace = simulate(schedule, costs)
    again = as_it_ran(trace, costs, Plan.by_hand([1, 1]))
    assert [(x.forward_s, x.backward_s, x.update_s) for x in again.layers] == [
        (x.forward_s, x.backward_s, x.update_s) for x in costs.layers
    ]
    assert simulate(schedule, again, Plan.by_hand([1, 1])).makespan_s == trace.makespan_s


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


@pytest.mark.parametrize(
    ("loops", "slower"),
    [([1, 1.01, 1.02], 1.015 / 1.005), ([1, 1, 1.1], 1.05), ([1, 1, 9] + [1] * 6, 1)],
    ids=["steady", "not", "a single one is not"],
)
def test_the_two_parts_make_up_the_error(
    loops: list[float], slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case is decided if plain loops are as long beside its runs as beside the profiles."""
    repeats, seconds = len(loops) // 3, iter(loops)
    monkeypatch.setattr(causes, "plain_loop_s", lambda *_: next(seconds))
    layers = [(0.010, 0.020), (0.010, 0.020), (0.025, 0.050)]
    costs = Profile(tuple(LayerProfile(str(n), *seconds) for n, seconds in enumerate(layers)))
    monkeypatch.setattr(causes, "profiled", lambda *_: costs)
    cases, hosts = [MethodCase("flush", 2, 2, 2)], {"threads": Host(task_s=1e-3)}
    (row,) = compared(small(), cases, hosts, repeats, passes=1)
    assert next(seconds, None) is None
    assert row["loops"] == pytest.approx(slower - 1)
    assert row["outcome"] == ("undecided" if slower > 1.03 else "decided")
    if repeats == 1:  # else these are medians, each of another repeat
        parts = (1 + row["error of passes"]) * (1 + row["error between"])
        assert parts == pytest.approx(1 + row["error"])
        assert row["error"] == row["predicted (s)"] / row["found (s)"] - 1
        # A forward, four passes on the longer stage, a backward and an update; then the next batch,
        # whose update nobody waits for.
        bare = (1 + row["error without host"]) * row["found (s)"]
        assert row["predicted (s)"] - bare == pytest.approx((7 + 6) * 1e-3)
    assert row["counts agree"]


def test_the_summary_counts_decided_cases_only() -> None:
    rows = [
        {"error": -0.04, "outcome": "decided"},
        {"error": 0.02, "outcome": "decided"},
        {"error": 0.9, "outcome": "undecided"},
    ]
    assert summary(rows).startswith(
        "2 of 3 cases are decided; seconds are predicted within 3.0% on"
    )
    assert "4.0% at most" in summary(rows)
    assert summary(rows[2:]) == "0 of 1 cases are decided: the machine was not quiet"
