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
    (inception_v3, "inception_v3", {"aux_logits": False, "init_weights": True}, 23_834_568, 22, 75),
]
BY_NAME = pytest.mark.parametrize(
    ("build", "name", "options", "parameters", "layers", "pixels"),
    MODELS,
    ids=[name for _, name, *_ in MODELS],
)

Build = Callable[..., nn.Sequential]


@BY_NAME
def test_parameters_are_as_published(
    build: Build, name: str, options: dict[str, bool], parameters: int, layers: int, pixels: int
) -> None:
    model = build(device="meta")
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model) == layers
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@BY_NAME
def test_outputs_are_torchvisions_to_the_bit(
    build: Build, name: str, options: dict[str, bool], parameters: int, layers: int, pixels: int
) -> None:
    theirs = torchvision.models.get_model(name, weights=None, num_classes=10, **options).eval()
    ours = build(classes=10, device="meta").eval()
    ours.load_state_dict(
        dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)), assign=True
    )
    images = torch.rand(2, 3, pixels, pixels)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))


@pytest.mark.parametrize(
    ("build", "pixels", "shapes"),
    [
        (alexnet, 224, {12: (256, 6, 6), 14: (9216,)}),
        (
            vgg16,
            224,
            {4: (64, 112, 112), 9: (128, 56, 56), 16: (256, 28, 28), 23: (512, 14, 14)}
            | {30: (512, 7, 7), 32: (25_088,)},
        ),
        (
            resnet50,
            224,
            {3: (64, 56, 56), 6: (256, 56, 56), 10: (512, 28, 28), 16: (1024, 14, 14)}
            | {19: (2048, 7, 7), 21: (2048,)},
        ),
        (
            resnet101,
            224,
            {6: (256, 56, 56), 10: (512, 28, 28), 33: (1024, 14, 14), 36: (2048, 7, 7)},
        ),
        (
            inception_v3,
            299,
            {6: (192, 35, 35), 9: (288, 35, 35), 14: (768, 17, 17), 17: (2048, 8, 8)},
        ),
    ],
)
def test_layers_give_the_shapes_that_the_docstrings_say(
    build: Build, pixels: int, shapes: dict[int, tuple[int, ...]]
) -> None:
    x = torch.empty(2, 3, pixels, pixels, device="meta")
    found = {}
    for number, layer in enumerate(build(device="meta")):
        x = layer(x)
        found[number] = tuple(x.shape[1:])
    assert {number: found[number] for number in shapes} == shapes
    assert x.shape == (2, 1000)


@pytest.mark.parametrize("build", [alexnet, vgg16, resnet50])
def test_no_layer_edits_its_input(build: Build) -> None:
    assert not any(getattr(layer, "inplace", False) for layer in build(device="meta"))
