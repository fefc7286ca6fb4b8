"""What a measured profile holds, and what measuring leaves alone.  No time decides a test."""

import sys
import threading
import warnings
from collections import UserDict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit
from pipekit.devices import streams
from pipekit.schedules import Op
from pipekit.trees import Tree
from tests.engine.examples import in_backward
from tests.people.test_torchgpipe import Calls

profile = partial(pipekit.profile, loss=None, optimizer=None, others=0)
"""The layers alone, and nobody beside them."""


def linear_relu_linear() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


TICK_S = 1e-6


class HandMovedClock:
    """Moves by what layers say that they take, and a little whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = HandMovedClock()


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "time", SimpleNamespace(perf_counter=CLOCK))


def taking(seconds: float) -> Any:
    """Return what a layer's time is that takes so long, beside what looking takes."""
    return pytest.approx(seconds, rel=0.01, abs=100 * TICK_S)


def sleeping(x: Tensor, seconds: float) -> Tensor:
    """Return x, whose gradient takes its time."""

    def sleep(gradient: Tensor) -> Tensor:
        CLOCK.sleep(seconds)
        return gradient

    return in_backward(sleep, x)


class Sleeper(nn.Module):
    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.seconds = forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        forward_s, backward_s = self.seconds
        CLOCK.sleep(forward_s)
        return sleeping(x, backward_s)


class WeightSleeper(nn.Module):
    """x + w, whose gradient of w takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        return x + sleeping(self.weight, self.seconds)


@pytest.mark.usefixtures("_clock")
class TestTimes:
    def test_both_parts_of_each_backward_are_timed_apart(self) -> None:
        """The sleeping is on the way to the input; a layer without weights has no second part."""
        model = nn.Sequential(nn.Linear(2, 2), Sleeper(0.001, 0.08), WeightSleeper(0.08))
        made = profile(model, torch.rand(1, 2), repeats=2)
        linear, sleeper, weights = made.layers
        assert sleeper.seconds(Op.BACKWARD_INPUT) == taking(0.08)
        assert sleeper.seconds(Op.BACKWARD_WEIGHT) == taking(0)
        assert weights.seconds(Op.BACKWARD_INPUT) == taking(0)
        assert weights.seconds(Op.BACKWARD_WEIGHT) == taking(0.08)
        assert linear.seconds(Op.BACKWARD_INPUT) == taking(0)

    def test_the_layers_are_compared_with_the_undivided_model(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), Sleeper(0.02, 0.02))
        made = profile(model, torch.rand(1, 2), repeats=2)
        step_s = made.provenance["step_s"]
        assert step_s == taking(0.04)
        assert made.forward_s + made.backward_s == taking(step_s)
        assert made.provenance["conservation"] == pytest.approx(1, rel=0.01)

    def test_a_sum_outside_the_tolerance_is_warned_of_and_one_within_is_not(self) -> None:
        with pytest.warns(UserWarning, match=r"times add up to \d+% of .* not within 0% of it"):
            profile(linear_relu_linear(), torch.rand(2, 8), repeats=2, tolerance=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            profile(linear_relu_linear(), torch.rand(2, 8), repeats=2, tolerance=1e9)

    def test_updates_are_timed_when_an_optimizer_is_given(self) -> None:
        class Slow(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                CLOCK.sleep(0.01)
                assert all(p.grad is not None for g in self.param_groups for p in g["params"])

        made = profile(linear_relu_linear(), torch.rand(2, 8), repeats=1, optimizer=Slow)
        assert [layer.update_s for layer in made.layers] == [taking(0.01), 0, taking(0.01)]
        assert [layer.copy_s > 0 for layer in made.layers] == [True, False, True]
        made = profile(linear_relu_linear(), torch.rand(2, 8), repeats=1)
        assert [layer.update_s for layer in made.layers] == [0, 0, 0]


def test_nothing_is_touched() -> None:
    """Neither weights, buffers, gradients and modes, nor generators, sample and threads."""
    model = nn.Sequential(
        nn.ReLU(inplace=True), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
    )
    model(torch.rand(4, 8)).sum().backward()
    model[2].eval()
    sample = torch.randn(4, 8)

    def state() -> list[Tensor]:
        tensors = [*model.parameters(), *model.buffers(), sample, torch.get_rng_state()]
        gradients = [parameter.grad for parameter in model.parameters()]
        return [tensor.detach().clone() for tensor in [*tensors, *gradients] if tensor is not None]

    before, modes = state(), [module.training for module in model.modules()]
    threads = torch.get_num_threads()
    with pytest.warns(UserWarning, match=r"evaluation mode \(BatchNorm1d\), and stay in it"):
        made = profile(model, sample, repeats=1, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    assert all(map(torch.equal, before, state()))
    assert [module.training for module in model.modules()] == modes
    assert not sample.requires_grad
    assert torch.get_num_threads() == made.provenance["threads"] == threads


def test_it_says_what_was_measured_and_how() -> None:
    made = profile(linear_relu_linear().bfloat16(), torch.rand(3, 8).bfloat16(), repeats=4)
    known = made.provenance
    assert known["label"] == "measured"
    assert known["device"] == "cpu"
    assert known["dtype"] == "bfloat16"
    assert known["rows"] == 3
    assert known["repeats"] == 4
    assert known["torch"] == torch.__version__
    assert known["tolerance"] == 0.1
    assert known["spread"] >= 0
    assert known["spread_layer"] in [layer.name for layer in made.layers]


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        made = profile(linear_relu_linear(), torch.rand(3, 8), repeats=1)
    assert all(layer.backward_s > 0 for layer in made.layers)


def test_gradients_may_be_sparse() -> None:
    model = nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True), nn.Linear(4, 2))
    made = profile(model, torch.randint(9, (3, 2)), repeats=1)
    assert all(layer.backward_s > 0 for layer in made.layers)


def refuses(x: Tensor) -> Tensor:
    raise RuntimeError("no")


def conditional(x: Tensor) -> Tensor:
    chosen: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return chosen


def test_a_dict_may_hold_more_than_a_recorded_model_takes() -> None:
    x = torch.rand(2, 8)
    layers = pipekit.stages(Calls(linear_relu_linear()), {"x": x})
    found = profile(layers, UserDict(x=x, labels=torch.zeros(2)), repeats=1)
    assert len(found.layers) == len(layers)


class TestErrors:
    def test_the_model_must_be_a_sequential(self) -> None:
        with pytest.raises(TypeError, match=r"must be layers .*not Linear: pipekit\.stages"):
            profile(nn.Linear(2, 2), torch.rand(1, 2))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("function", "error", "says"),
        [
            (refuses, ValueError, "layer '1 Calls' fails in its forward: RuntimeError: no"),
            (partial(in_backward, refuses), ValueError, "'1 Calls' fails in its backward: .* no"),
            (conditional, ValueError, r"layer '1 Calls' calls .* torch\.cond.*use torch\.where"),
            (lambda x: "text", TypeError, "layer '1 Calls' cannot be profiled: .* not str"),
        ],
    )
    def test_a_layer_that_fails_is_named(
        self, function: Callable[[Tensor], Any], error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            profile(nn.Sequential(nn.Linear(2, 2), Calls(function)), torch.rand(1, 2))

    def test_a_model_without_data_cannot_be_timed(self) -> None:
        with pytest.raises(ValueError, match=r"device 'meta' .* use Profile\.analytic"):
            profile(nn.Sequential(nn.Linear(2, 2, device="meta")), torch.rand(1, 2))

    @pytest.mark.parametrize("sample", [torch.tensor(1.0), ()])
    def test_a_sample_without_rows(self, sample: Tree) -> None:
        with pytest.raises(ValueError, match="leading dimension of rows"):
            profile(linear_relu_linear(), sample)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_events_time_the_same_layers() -> None:
    made = profile(linear_relu_linear(), torch.rand(5, 8), "cuda", repeats=2)
    assert made.provenance["device"] == torch.cuda.get_device_name()
    assert all(layer.forward_s > 0 for layer in made.layers)


def test_by_default_a_worker_is_timed_that_trains_beside_another() -> None:
    """With a loss, whose saved bytes count, updates and copies, and half of the cores."""
    model, x = linear_relu_linear(), torch.rand(6, 8)
    made, alone = pipekit.profile(model, x, repeats=1), profile(model, x, repeats=1)
    assert made.provenance["others"] == 1
    assert made.provenance["threads"] == 1
    assert made.layers[0].update_s > 0
    assert made.layers[0].copy_s > 0
    assert made.layers[-1].saved_bytes >= alone.layers[-1].saved_bytes + 6 * 4 * 4
    assert made.layers[0].saved_bytes == alone.layers[0].saved_bytes


def test_others_at_work_share_the_cores_and_leave_no_thread() -> None:
    before = threading.active_count(), torch.get_num_threads(), sys.getswitchinterval()
    made = profile(nn.Sequential(nn.Linear(64, 64)), torch.rand(8, 64), repeats=3, others=2)
    assert (threading.active_count(), torch.get_num_threads(), sys.getswitchinterval()) == before
    assert made.provenance["others"] == 2
    assert made.provenance["threads"] == 1
