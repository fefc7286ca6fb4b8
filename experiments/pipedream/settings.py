"""How PipeDream's authors trained, as data (PipeDream, section 5.1)."""

from collections.abc import Mapping
from functools import partial

from torch.optim import SGD

ROWS: Mapping[str, int] = {
    "alexnet": 32,
    "vgg16": 32,
    "s2vt": 80,
    "resnet50": 32,
    "inception-v3": 32,
}
"""Rows of a machine's minibatch by model (section 5.1).  The paper prints none for AlexNet and
ResNet-50, which get what the other image networks have."""

LR = 0.01
"""Of VGG16 and S2VT, at first."""

VGG16_SGD = partial(SGD, momentum=0.9)

IMAGES, WORDS = 1_300_000, 12_594
"""Training images of ILSVRC12; words of MSVD's captions."""
