"""How PipeDream's authors trained, as data (PipeDream, section 5.1)."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch.nn import Parameter
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LRScheduler, StepLR

PROFILED_MINIBATCHES = 1000
"""Minibatches of a profile run (section 3.2)."""

ROWS: Mapping[str, int] = {
    "alexnet": 32,
    "vgg16": 32,
    "s2vt": 80,
    "resnet50": 32,
    "inception-v3": 32,
}
"""Rows of a machine's minibatch by model (section 5.1).  The paper prints none for AlexNet and
ResNet-50, which get what the other image networks have."""


@dataclass(frozen=True)
class PublishedTraining:
    """How a network was trained; what the paper does not print has PyTorch's default.

    ``data`` is a key of :data:`DATA`, ``minibatch`` rows a machine, ``momentum`` None for RMSProp;
    the learning rate is multiplied by ``decay`` every ``decay_epochs`` epochs; ``target`` is the
    advertised value of ``metric``.
    """

    data: str
    minibatch: int
    lr: float
    momentum: float | None
    metric: str
    target: float
    decay: float = 1.0
    decay_epochs: int = 1

    def optimizer(self, parameters: list[Parameter]) -> Optimizer:
        """Return the optimizer of some parameters."""
        if self.momentum is None:
            return RMSprop(parameters, lr=self.lr)
        return SGD(parameters, lr=self.lr, momentum=self.momentum)

    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Return what decays the optimizer's learning rate; to be stepped after each epoch."""
        return StepLR(optimizer, step_size=self.decay_epochs, gamma=self.decay)


TRAININGS: Mapping[str, PublishedTraining] = {
    "vgg16": PublishedTraining("ILSVRC12", 32, 0.01, 0.9, "top-1 accuracy", 0.68),
    "inception-v3": PublishedTraining(
        "ILSVRC12", 32, 0.045, None, "top-1 accuracy", 0.67, decay=0.94, decay_epochs=2
    ),
    "s2vt": PublishedTraining("MSVD", 80, 0.01, 0.9, "METEOR", 0.294),
}
"""By model, as :data:`pipekit.models.PUBLISHED` names them."""


@dataclass(frozen=True)
class Data:
    """The size of a data set: training images or videos, classes or words, validation images."""

    train: int
    classes: int
    validation: int | None = None


DATA: Mapping[str, Data] = {"ILSVRC12": Data(1_300_000, 1000, 50_000), "MSVD": Data(1970, 12_594)}
