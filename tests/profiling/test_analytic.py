"""The roofline, and that bytes do not depend on where they are counted."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pipekit import Profile, models, profile
from pipekit.clusters import K80, P100, V100, Device
from pipekit.profiling import LayerProfile
from pipekit.trees import tree_map
from tests.profiling.test_measured_bytes import CHAINS, profiled

COMPUTES = Device("computes", 1, {"float32": 1e9, "float16": 4e9}, math.inf)
MOVES = Device("moves", 1, {"float32": math.inf, "float16": math.inf}, 1e9)


def linear() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16, device="meta"), nn.Linear(16, 4, device="meta"))


ROWS = torch.empty(5, 8, device="meta")


class TestRoofline:
    def test_a_pass_takes_its_operations_at_the_attained_peak(self) -> None:
        made = Profile.analytic(linear(), ROWS, COMPUTES, efficiency=0.5)
        first, second = made.layers
        assert first.forward_s == pytest.approx(2 * 5 * 8 * 16 / 0.5e9)
        assert first.backward_s == pytest.approx(first.forward_s)  # the input needs no gradient
        assert second.backward_s == pytest.approx(2 * second.forward_s)

    def test_or_its_bytes_at_the_attained_bandwidth(self) -> None:
        made = Profile.analytic(
            nn.Sequential(nn.ReLU(), nn.Linear(8, 8, bias=False)),
            ROWS,
            MOVES,
            memory_efficiency=0.5,
        )
        relu, product = made.layers
        rows, weight = 5 * 8 * 4, 8 * 8 * 4
        assert relu.forward_s == pytest.approx(2 * rows / 0.5e9)
        assert relu.backward_s == 0
        assert product.forward_s == pytest.approx((2 * rows + weight) / 0.5e9)

    def test_whichever_is_longer_for_each_operator(self) -> None:
        """Of a layer that multiplies, which takes its operations, and adds, which takes its bytes.

        A GPU runs one after the other, so that a layer takes longer than either.
        """
        device = Device("both", 1, {"float32": 1e9}, 1e9)
        layer = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU())
        both, computes, moves = (
            Profile.analytic(nn.Sequential(layer), ROWS, d, efficiency=1, memory_efficiency=1)
            for d in (device, COMPUTES, MOVES)
        )
        product = 2 * 5 * 8 * 16 / 1e9
        assert computes.forward_s == pytest.approx(product)
        relu = 2 * 5 * 16 * 4 / 1e9
        product_bytes = (5 * 8 + 8 * 16 + 5 * 16) * 4 / 1e9
        assert moves.forward_s == pytest.approx(product_bytes + relu)
        assert product > product_bytes
        assert both.forward_s == pytest.approx(product + relu)
        fused = Profile.analytic(
            nn.Sequential(layer),
            ROWS,
            replace(device, library="XLA"),
            efficiency=1,
            memory_efficiency=1,
        )
        assert fused.forward_s == pytest.approx(max(product, product_bytes + relu))

    @pytest.mark.parametrize(
        ("layer", "fewer"),
        [
            (nn.Conv2d(4, 4, 3, padding=1), True),
            (nn.Conv2d(4, 4, 3, stride=2), False),
            (nn.Conv2d(4, 4, 3, dilation=2), False),
            (nn.Conv2d(4, 4, 3, groups=4), False),
            (nn.Conv2d(4, 4, 5), False),
            (nn.Conv2d(4, 4, (3, 1)), False),
            (nn.ConvTranspose2d(4, 4, 3), False),
        ],
        ids=str,
    )
    def test_winograd_saves_operations_where_it_can_be_used(
        self, layer: nn.Module, fewer: bool
    ) -> None:
        model, images = nn.Sequential(layer, layer), torch.empty(2, 4, 12, 12, device="meta")
        direct, device = (
            Profile.analytic(model, images, d)
            for d in (COMPUTES, replace(COMPUTES, library="cuDNN"))
        )
        saved = 2.25 if fewer else 1
        assert direct.forward_s == pytest.approx(saved * device.forward_s)
        assert direct.backward_s == pytest.approx(saved * device.backward_s)
        assert [x.flops for x in direct.layers] == [x.flops for x in device.layers]
        halves = (COMPUTES, replace(COMPUTES, library="cuDNN"))
        half = {Profile.analytic(model, images, d, dtype="float16").forward_s for d in halves}
        assert len(half) == 1

    def test_views_move_nothing(self) -> None:
        (layer,) = Profile.analytic(nn.Sequential(nn.Flatten()), ROWS, MOVES).layers
        assert layer.forward_s == 0

    def test_the_dtype_chooses_the_peak_and_the_bytes(self) -> None:
        full, half = (
            Profile.analytic(linear(), ROWS, COMPUTES, dtype=d) for d in ("float32", "float16")
        )
        assert half.forward_s == pytest.approx(full.forward_s / 4)
        assert half.parameter_bytes == full.parameter_bytes / 2
        assert half.input_bytes == full.input_bytes / 2

    def test_vgg16_has_the_operations_that_are_published(self) -> None:
        network = models.PUBLISHED["vgg16"]
        with torch.device("meta"):
            sample = network.sample(1)
        made = Profile.analytic(network.build(device="meta"), sample, V100)
        multiply_adds = made.stage(0, len(made)).flops / 2
        assert multiply_adds == pytest.approx(15.5e9, rel=0.01)  # torchvision's table: 15.47


def without_times(layers: tuple[LayerProfile, ...]) -> list[LayerProfile]:
    return [
        replace(layer, forward_s=0, backward_s=0, backward_input_s=None, backward_weight_s=None)
        for layer in layers
    ]


@pytest.mark.parametrize("name", CHAINS)
def test_bytes_and_operations_are_the_same_with_and_without_data(name: str) -> None:
    model, sample = CHAINS[name]
    if name == "S2VT":
        model = model[:1]  # the embeddings: what an LSTM saves is known with data only
    measured = profiled(name)
    if name == "S2VT":
        measured = profile(model, sample, repeats=1, loss=None, optimizer=None, others=0)
    without_data = copy.deepcopy(model).to("meta"), tree_map(lambda t: t.to("meta"), sample)
    estimated = Profile.analytic(*without_data, K80)
    assert without_times(estimated.layers) == without_times(measured.layers)
    assert estimated.skips == measured.skips
    assert estimated.input_bytes == measured.input_bytes
    assert estimated.rows == measured.rows


def test_a_backward_through_an_lstm_has_twice_the_operations() -> None:
    model = models.s2vt(vocabulary=20, features=8, embedding=4, hidden=6)
    sample = torch.rand(2, 3, 8), torch.randint(20, (2, 4))
    for layer in Profile.analytic(model, sample, COMPUTES).layers[1:]:
        assert layer.backward_s == pytest.approx(2 * layer.forward_s)


def test_it_computes_nothing_and_touches_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    Profile.analytic(model, torch.rand(5, 8), V100, dtype="float16")
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "bfloat16"}, "dtype on V100 16GB must be one of float32, float16, not 'bfl"),
        ({"efficiency": 0}, "efficiency must be above 0 and at most 1, not 0"),
        ({"memory_efficiency": 1.5}, "memory_efficiency must be above 0 and at most 1, not 1.5"),
    ],
)
def test_what_cannot_be_estimated_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Profile.analytic(linear(), ROWS, V100, **options)


def test_a_layer_that_fails_is_named() -> None:
    with pytest.raises(ValueError, match="layer '1 Linear' fails in its forward"):
        Profile.analytic(nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 4)), ROWS, V100)


# --- beside speeds that others measured on the same GPUs


MEASURED: dict[str, dict[str, float]] = {
    "P100": {"inception-v3": 142, "resnet50": 219, "vgg16": 154, "alexnet": 2987},
    "K80": {"inception-v3": 30.5, "resnet50": 51.9, "vgg16": 35.4, "alexnet": 656},
}
"""Images a second of one GPU in training on synthetic data, TensorFlow with cuDNN 5.1, May 2017
(tensorflow.org, "Performance > Benchmarks", sections on the DGX-1's P100 and Compute Engine's K80).
Whoever wrote the kernels of a network decides about a factor of two, so bounds are wide."""
GPUS = {"P100": P100, "K80": K80}
IMAGES = 8
SLOW = {"inception-v3", "resnet50"}
"""Their estimates take longest."""


@pytest.mark.parametrize(
    ("gpu", "network"),
    [
        pytest.param(gpu, network, marks=[pytest.mark.long] * (network in SLOW))
        for gpu, measured in MEASURED.items()
        for network in measured
    ],
)
def test_a_network_is_estimated_within_a_factor(gpu: str, network: str) -> None:
    images = models.PUBLISHED[network].sample(IMAGES).to("meta")
    model = models.PUBLISHED[network].build(device="meta")
    estimated = Profile.analytic(model, images, GPUS[gpu])
    speed = IMAGES / (estimated.forward_s + estimated.backward_s)
    assert 1 / 2.3 < speed / MEASURED[gpu][network] < 2.3
