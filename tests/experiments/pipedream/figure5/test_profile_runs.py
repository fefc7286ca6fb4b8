"""Profile runs: what a layer takes from minibatch to minibatch."""

import time
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import pipekit as pk
from experiments.pipedream.figure5 import profile_runs
from pipekit.models import image_mlp

IMAGES = torch.rand(4, 1, 28, 28)


def test_a_profile_has_the_three_quantities() -> None:
    model = image_mlp(width=8, depth=2)
    costs = pk.profile(model, IMAGES, repeats=1, tolerance=100)
    assert profile_runs.holds_three_quantities(model, IMAGES, costs)
    *others, last = costs.layers
    for wrong in (
        replace(last, output_bytes=1),
        replace(last, parameter_bytes=1),
        replace(last, backward_s=0),
    ):
        broken = replace(costs, layers=(*others, wrong))
        assert not profile_runs.holds_three_quantities(model, IMAGES, broken)


class Clock:
    """A clock that layers move on; the first minibatches take longer."""

    def __init__(self) -> None:
        self.now, self.passes = 0.0, 0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """Takes so many seconds of a clock forward and backward; longer in its first pass."""

    def __init__(self, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.clock, self.forward_s, self.backward_s, self.first = clock, forward_s, backward_s, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.forward_s + self.first
        self.first = 0.0
        y = x * self.weight
        y.register_hook(lambda _: setattr(self.clock, "now", self.clock.now + self.backward_s))
        return y


def test_a_profile_run_times_every_layer_in_every_minibatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "process_time", clock)
    model = nn.Sequential(Slow(clock, 0.25, 0.5), Slow(clock, 1, 3))
    times = profile_runs.profile_run(model, torch.rand(4, 2), minibatches=3)
    assert list(times) == ["0 Slow", "1 Slow"]
    assert times.to_numpy().tolist() == [[0.75, 4]] * 3  # the first minibatch only warms up


def test_a_profile_run_says_how_much_the_same_work_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, took = Clock(), iter([9.0] * 2 * profile_runs.WARM_UP + [1.0, 3.0] * 3)

    def product(a: torch.Tensor, b: torch.Tensor) -> None:
        clock.now += next(took)

    monkeypatch.setattr(time, "process_time", clock)
    monkeypatch.setattr(torch, "mm", product)
    times = profile_runs.profile_run(nn.Sequential(nn.Identity()), torch.rand(4, 2), minibatches=3)
    assert list(times) == ["0 Identity"]
    assert times.attrs["host"] == 0, "the first of each two products warms up"


def test_variation_by_hand() -> None:
    times = pd.DataFrame({"a": [1.0, 3.0], "b": [6.0, 6.0]})
    found = profile_runs.variation(times).set_index("layer")
    assert found["median_ms"]["a"] == 2000
    assert found["cv"]["a"] == pytest.approx(2**0.5 / 2)
    assert found["ci"]["a"] == pytest.approx(1.96 * 0.5)  # the mean is 2 +- 1.96
    assert found["cv"]["b"] == 0
    assert found["share"]["a"] == 0.25


def test_differences_leave_short_layers_out() -> None:
    one = pd.DataFrame({"a": [9.0], "b": [10.0], "short": [0.01]})
    other = pd.DataFrame({"a": [11.0], "b": [10.0], "short": [0.02]})
    assert profile_runs.differences(one, other).to_dict() == pytest.approx({"a": 0.2, "b": 0.0})


@pytest.mark.long
def test_two_workers_profile_the_same_layers() -> None:
    runs = profile_runs.of_two_workers(image_mlp, IMAGES, minibatches=3)
    assert [len(run) for run in runs] == [3, 3]
    assert list(runs[0]) == list(runs[1])
    assert runs[0].attrs["worker"] != runs[1].attrs["worker"]


def test_whole_passes_are_the_fastest_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    tiny = pk.models.Published(
        lambda **_: nn.Sequential(Slow(clock, 2, 5)), lambda rows: torch.rand(rows, 3)
    )
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(profile_runs, "PUBLISHED", {"tiny": tiny})
    assert profile_runs.whole_passes("tiny", rows=2, repeats=3) == (2, 5)
    (row,) = profile_runs.whole_models("tiny 2", 1).to_dict("records")
    assert (row["model"], row["rows"], row["ratio"]) == ("tiny", 2, 2.5)
    with pytest.raises(
        ValueError, match="model must be one of tiny, not 'tny'; did you mean 'tiny'"
    ):
        profile_runs.whole_models("tny 2", 1)


def test_findings_are_medians_and_extremes_over_layers() -> None:
    one = pd.DataFrame({"a": [1.0, 3.0], "b": [6.0, 6.0], "c": [4.0, 4.0]})
    other = pd.DataFrame({"a": [2.0, 2.0], "b": [9.0, 9.0], "c": [4.0, 4.0]})
    again = one.copy()
    for run, worker, host in ((one, 1, 0.1), (other, 2, 0.3), (again, 1, 0.1)):
        run.attrs |= {"worker": worker, "host": host}
    steady, alike = profile_runs.steadiness_findings([one, other, again, other])
    assert (steady.value, steady.known_error) == (0, 0)
    wild = one.assign(b=[4.0, 8.0])
    wild.attrs |= one.attrs
    (unsteady, _) = profile_runs.steadiness_findings([wild, other])
    assert unsteady.value == pytest.approx(2**0.5 / 6)  # the mean of 8 ** 0.5 / 6 and of none
    assert unsteady.known_error == pytest.approx(0.2 / unsteady.value), "the host's part of it"
    assert alike.value == pytest.approx(3 / 7.5)
    assert alike.repeats == pytest.approx([3 / 7.5, 3 / 7.5])
    assert "mean of 2 pairs; in the first b, among the 3 layers" in alike.note
    costs = pk.Profile(
        (pk.profiling.LayerProfile("0 A", 2, 1), pk.profiling.LayerProfile("1 B", 1, 2))
    )
    wholes = pd.DataFrame({"model": ["x", "y"], "ratio": [2.0, 1.5]})
    found = profile_runs.backward_finding(wholes, costs)
    assert found.value == 1.5
    assert found.note.endswith("with a shorter backward: 0 A")
    assert profile_runs.quantities(costs)["T_l (ms)"].tolist() == [3000, 3000]
