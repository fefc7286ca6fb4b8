"""The papers' networks are as large as published, take their samples, and are torchvision's."""

import re
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn

from pipekit.models import PUBLISHED, alexnet, inception_v3, resnet50, resnet101, vgg16

# The smallest of a family stands for the larger ones, which run the same code for seconds.
LARGER = re.compile("amoebanet-d-.*(?<!18-208)|unet-.*(?<!5-64)|gpt-.*(?<!355M)|vgg16|resnet.*")


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not LARGER.fullmatch(name)])
def test_networks_take_their_samples(name: str) -> None:
    network = PUBLISHED[name]
    with torch.device("meta"):
        sample = network.sample(2)
    output = network.build(device="meta")(sample)
    assert output.is_meta
    assert output.shape[0] == 2


@pytest.mark.parametrize(
    ("name", "parameters", "layers"),
    [
        ("alexnet", 61_100_840, 22),
        ("vgg16", 138_357_544, 40),
        ("resnet50", 25_557_032, 23),
        ("resnet101", 44_549_160, 40),
        ("inception-v3", 23_834_568, 22),
        ("amoebanet-d-18-208", 81_505_540, 24),
        ("amoebanet-d-36-544", 1_055_832_376, 42),
        ("unet-5-64", 232_687_328, 66),
        ("unet-11-128", 2_213_834_176, 132),
    ],
)
def test_parameters_are_as_published(name: str, parameters: int, layers: int) -> None:
    model = PUBLISHED[name].build(device="meta")
    assert (sum(p.numel() for p in model.parameters()), len(model)) == (parameters, layers)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@pytest.mark.parametrize(
    ("build", "options", "pixels"),
    [
        (alexnet, {}, 64),
        pytest.param(vgg16, {}, 32, marks=pytest.mark.models),  # takes long
        (resnet50, {}, 32),
        pytest.param(resnet101, {}, 32, marks=pytest.mark.models),
        (inception_v3, {"aux_logits": False, "init_weights": False}, 75),
    ],
)
def test_outputs_are_torchvisions_to_the_bit(
    build: Callable[..., nn.Sequential], options: dict[str, bool], pixels: int
) -> None:
    name = build.__name__
    theirs = torchvision.models.get_model(name, weights=None, num_classes=10, **options).eval()
    ours = build(classes=10, device="meta").eval()
    ours.load_state_dict(
        dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)), assign=True
    )
    images = torch.rand(2, 3, pixels, pixels)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))
