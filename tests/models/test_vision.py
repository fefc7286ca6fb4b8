from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn

from pipekit.models import alexnet, inception_v3, resnet50, resnet101, vgg16

MODELS = [
    # model, torchvision's name and options, parameters, layers, smallest pixels here
    (alexnet, "alexnet", {}, 61_100_840, 22, 64),
    (vgg16, "vgg16", {}, 138_357_544, 40, 32),
    (resnet50, "resnet50", {}, 25_557_032, 23, 32),
    (resnet101, "resnet101", {}, 44_549_160, 40, 32),
    (
        inception_v3,
        "inception_v3",
        {"aux_logits": False, "init_weights": False},
        23_834_568,
        22,
        75,
    ),
]
MARKS = {name: [pytest.mark.models] for name in ("vgg16", "resnet101")}
"""Of those whose outputs take long."""

Build = Callable[..., nn.Sequential]


@pytest.mark.parametrize(
    ("build", "parameters", "layers"), [(model[0], *model[3:5]) for model in MODELS]
)
def test_parameters_are_as_published(build: Build, parameters: int, layers: int) -> None:
    model = build(device="meta")
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model) == layers
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@pytest.mark.parametrize(
    ("build", "name", "options", "pixels"),
    [
        pytest.param(build, name, options, pixels, id=name, marks=MARKS.get(name, []))
        for build, name, options, _, _, pixels in MODELS
    ],
)
def test_outputs_are_torchvisions_to_the_bit(
    build: Build, name: str, options: dict[str, bool], pixels: int
) -> None:
    theirs = torchvision.models.get_model(name, weights=None, num_classes=10, **options).eval()
    ours = build(classes=10, device="meta").eval()
    ours.load_state_dict(
        dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)), assign=True
    )
    images = torch.rand(2, 3, pixels, pixels)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))
