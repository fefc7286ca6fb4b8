"""The papers' image classifiers, from torchvision's modules, as flat sequences of layers.

Each computes exactly what torchvision's model does in evaluation mode and, but for Inception-v3's
auxiliary classifier, in training; ``state_dict()`` holds the same tensors in the same order.  ReLUs
that stand alone write to a tensor of their own.

Images are ``[B, 3, H, W]``, logits ``[B, classes]``; ``device`` is where the weights are made, by
default PyTorch's, and "meta" makes shapes without data.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.types import Device

from pipekit.models.devices import on


def alexnet(classes: int = 1000, device: Device = None) -> nn.Sequential:
    """Return AlexNet: 61,100,840 parameters in 22 layers, images of 224 (at least 63) pixels.

    - 0-12: convolutions, ReLUs and pools, to ``[B, 256, 6, 6]``
    - 13-14: average pool and flattening, to ``[B, 9216]``
    - 15-21: dropouts, linear layers and ReLUs of 4096 features, to ``[B, classes]``

    ``classes``: how many logits; ``device``: where the weights are made.
    """
    model = _torchvision("alexnet", classes, device)
    return _sequence([*model.features, model.avgpool, nn.Flatten(), *model.classifier])


def vgg16(classes: int = 1000, device: Device = None) -> nn.Sequential:
    """Return VGG16: 138,357,544 parameters in 40 layers, images of 224 (at least 32) pixels.

    - 0-30: convolutions, each with its ReLU, and five pools (4, 9, 16, 23, 30), of which each
      halves the image: ``[B, 64, 112, 112]`` to ``[B, 512, 7, 7]``
    - 31-32: average pool and flattening, to ``[B, 25088]``
    - 33-39: linear layers of 4096 features, ReLUs and dropouts, to ``[B, classes]``

    ``classes`` and ``device``: as for :func:`alexnet`.
    """
    model = _torchvision("vgg16", classes, device)
    return _sequence([*model.features, model.avgpool, nn.Flatten(), *model.classifier])


def resnet50(classes: int = 1000, device: Device = None) -> nn.Sequential:
    """Return ResNet-50: 25,557,032 parameters in 23 layers, 16 of them bottlenecks.

    - 0-3: convolution, batch norm, ReLU and pool, to ``[B, 64, H/4, W/4]``
    - 4-19: 3, 4, 6 and 3 bottlenecks, to ``[B, 256, H/4, W/4]``, ``[B, 512, H/8, W/8]``,
      ``[B, 1024, H/16, W/16]`` and ``[B, 2048, H/32, W/32]``
    - 20-22: average pool, flattening to ``[B, 2048]`` and linear layer, to ``[B, classes]``

    ``classes`` and ``device``: as for :func:`alexnet`.
    """
    return _resnet_sequence(_torchvision("resnet50", classes, device))


def resnet101(classes: int = 1000, device: Device = None) -> nn.Sequential:
    """Return ResNet-101: 44,549,160 parameters in 40 layers, 33 of them bottlenecks.

    As :func:`resnet50`, ``classes`` and ``device`` too, with 3, 4, 23 and 3 bottlenecks.
    """
    return _resnet_sequence(_torchvision("resnet101", classes, device))


def inception_v3(classes: int = 1000, device: Device = None) -> nn.Sequential:
    """Return Inception-v3: 23,834,568 parameters in 22 layers, images of 299 (at least 75) pixels.

    It has no auxiliary classifier, a second loss in the middle of the pipeline.  PipeDream section
    5.1 prints 157 MB; in float32 this is 95 MB (109 MB with the classifier).

    - 0-6: convolutions with batch norm and ReLU, and two pools, to ``[B, 192, 35, 35]``
    - 7-9: blocks 5b-5d, to ``[B, 288, 35, 35]``
    - 10-14: blocks 6a-6e, to ``[B, 768, 17, 17]``
    - 15-17: blocks 7a-7c, to ``[B, 2048, 8, 8]``
    - 18-21: average pool, dropout, flattening to ``[B, 2048]`` and linear layer, to
      ``[B, classes]``

    ``classes`` and ``device``: as for :func:`alexnet`.
    """
    # Its own initialisation is the paper's; leaving it unsaid makes torchvision warn.
    model = _torchvision("inception_v3", classes, device, aux_logits=False, init_weights=True)
    layers = dict(model.named_children())
    linear = layers.pop("fc")
    return _sequence([*layers.values(), nn.Flatten(), linear])


def _torchvision(name: str, classes: int, device: Device, **options: bool) -> Any:
    from torchvision import models  # here, since it takes over a second

    with on(device):
        return models.get_model(name, weights=None, num_classes=classes, **options)


def _resnet_sequence(model: Any) -> nn.Sequential:
    stem = [model.conv1, model.bn1, model.relu, model.maxpool]
    blocks = [*model.layer1, *model.layer2, *model.layer3, *model.layer4]
    return _sequence([*stem, *blocks, model.avgpool, nn.Flatten(), model.fc])


def _sequence(layers: Iterable[nn.Module]) -> nn.Sequential:
    return nn.Sequential(*(nn.ReLU() if isinstance(layer, nn.ReLU) else layer for layer in layers))
