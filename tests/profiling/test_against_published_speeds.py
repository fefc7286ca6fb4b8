"""Estimated speeds beside speeds that others measured on the same GPUs.

Images a second of one GPU in training on synthetic data, TensorFlow with cuDNN 5.1, May 2017
(tensorflow.org, "Performance > Benchmarks", sections on the DGX-1's P100 and Compute Engine's K80).
Whoever wrote the kernels of a network decides about a factor of two, so bounds are wide.
"""

from functools import cache

import pytest
from torch import nn

from pipekit import Profile
from pipekit.clusters import K80, P100, Device
from pipekit.models import PUBLISHED

MEASURED: dict[str, dict[str, float]] = {
    "P100": {"inception-v3": 142, "resnet50": 219, "vgg16": 154, "alexnet": 2987},
    "K80": {"inception-v3": 30.5, "resnet50": 51.9, "vgg16": 35.4, "alexnet": 656},
}
GPUS = {"P100": P100, "K80": K80}
ROWS = 8
SLOW = {"inception-v3", "resnet50"}
"""Their estimates take longest."""


@cache
def built(network: str) -> nn.Sequential:
    return PUBLISHED[network].build(device="meta")


@cache
def profile(network: str, device: Device) -> Profile:
    images = PUBLISHED[network].sample(ROWS).to("meta")
    return Profile.analytic(built(network), images, device)


@pytest.mark.parametrize(
    ("gpu", "network"),
    [
        pytest.param(gpu, network, marks=[pytest.mark.long] * (network in SLOW))
        for gpu, measured in MEASURED.items()
        for network in measured
    ],
)
def test_a_network_is_estimated_within_a_factor(gpu: str, network: str) -> None:
    estimated = profile(network, GPUS[gpu])
    speed = ROWS / (estimated.forward_s + estimated.backward_s)
    assert 1 / 2.3 < speed / MEASURED[gpu][network] < 2.3


def test_vgg16_was_trained_with_fewer_operations_than_its_layers_have() -> None:
    """More than the P100 can do in a second, so that Winograd's algorithm must be counted in."""
    forward = sum(layer.flops for layer in profile("vgg16", P100).layers) / ROWS
    assert 3 * forward * MEASURED["P100"]["vgg16"] > 1.5 * P100.peak_flops["float32"]
