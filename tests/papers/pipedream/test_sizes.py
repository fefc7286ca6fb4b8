"""What layers hold and take: Figure 5's bytes, and profile runs."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit.ledger.claims import load
from pipekit.ledger.criteria import evaluate
from pipekit.models import image_mlp
from pipekit.papers.pipedream import sizes

IMAGES = torch.rand(4, 1, 28, 28)


def test_figure_five_has_the_ledgers_sizes() -> None:
    claim = load()["pipedream-fig5-vgg16-activation-sizes"]
    found = sizes.printed_sizes(sizes.vgg16_outputs())
    assert evaluate(claim.check, found, claim.target).passed


def test_sizes_follow_the_rows_and_parameters_do_not() -> None:
    few, many = sizes.vgg16_outputs(1), sizes.vgg16_outputs(32)
    assert list(few["output_mb"] * 32) == pytest.approx(list(many["output_mb"]))
    assert list(few["parameters_mb"]) == list(many["parameters_mb"])
    assert list(few["layer"][:3]) == ["conv1_1", "conv1_2", "pool1"]
    assert few["output_mb"].iloc[-1] * 1e6 == 1000 * 4  # fc8: a float32 a class


def test_only_late_cuts_send_less_than_a_tenth() -> None:
    frame = sizes.vgg16_outputs()
    late = sizes.late_cuts(frame)
    assert list(late["layer"][:3]) == ["pool2", "pool3", "conv4_1"]
    assert late["cut"].min() > 90
    assert frame[~frame["layer"].isin(late["layer"])]["cut"].max() < 90


def test_parameters_are_those_of_the_models_documentation() -> None:
    found = sizes.parameters(["vgg16", "inception-v3"])
    assert found == {"vgg16": 138_357_544, "inception-v3": 23_834_568}


def test_a_profile_has_the_three_quantities() -> None:
    model = image_mlp(width=8, depth=2)
    costs = pk.profile(model, IMAGES, repeats=1, tolerance=100)
    assert sizes.holds_three_quantities(model, IMAGES, costs)
    *others, last = costs.layers
    for wrong in (
        replace(last, output_bytes=1),
        replace(last, parameter_bytes=1),
        replace(last, backward_s=0),
    ):
        broken = replace(costs, layers=(*others, wrong))
        assert not sizes.holds_three_quantities(model, IMAGES, broken)


def test_a_profile_run_times_every_layer_in_every_minibatch() -> None:
    model = image_mlp(width=8, depth=2)
    times = sizes.profile_run(model, IMAGES, minibatches=7)
    assert list(times) == ["0 Flatten", "1 Linear", "2 ReLU", "3 Linear"]
    assert len(times) == 7
    assert (times > 0).all(axis=None)
    assert all(p.grad is not None for p in model.parameters())  # the backward went through


def test_variation_by_hand() -> None:
    times = pd.DataFrame({"a": [1.0, 3.0], "b": [6.0, 6.0]})
    found = sizes.variation(times).set_index("layer")
    assert found["median_ms"]["a"] == 2000
    assert found["cv"]["a"] == pytest.approx(2**0.5 / 2)
    assert found["ci"]["a"] == pytest.approx(1.96 * 0.5)  # the mean is 2 +- 1.96
    assert found["cv"]["b"] == 0
    assert found["share"]["a"] == 0.25


def test_differences_leave_short_layers_out() -> None:
    one = pd.DataFrame({"a": [9.0], "b": [10.0], "short": [0.01]})
    other = pd.DataFrame({"a": [11.0], "b": [10.0], "short": [0.02]})
    assert sizes.differences(one, other).to_dict() == pytest.approx({"a": 0.2, "b": 0.0})


@pytest.mark.slow
def test_two_workers_profile_the_same_layers() -> None:
    runs = sizes.of_two_workers(image_mlp, IMAGES, minibatches=3)
    assert [len(run) for run in runs] == [3, 3]
    assert list(runs[0]) == list(runs[1])


def test_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(50):
                x = x * 1.01
            return x

    tiny = pk.models.Published(
        lambda **_: nn.Sequential(nn.Linear(3, 3), Slow()), lambda rows: torch.rand(rows, 3)
    )
    monkeypatch.setattr(sizes, "PUBLISHED", {"tiny": tiny})
    forward, backward = sizes.whole_passes("tiny", rows=2, repeats=3)
    assert forward > 0
    assert backward > 0
