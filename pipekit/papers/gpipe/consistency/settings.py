"""The trainings of 4.3.2 and 4.3.3, as data, and for those who have the images and accelerators.

What the paper does not print has PyTorch's default, such as RMSProp's momentum of 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from pipekit.engine import Pipeline
from pipekit.layers.batch_norm import convert_batch_norm
from pipekit.models import amoebanet_d
from pipekit.papers.findings import Finding, printed
from pipekit.papers.trainings.training import learning_rates
from pipekit.schedules import Schedule, gpipe, replicate


@dataclass(frozen=True)
class ImageNet:
    """Training AmoebaNet-B (6, 512) on ImageNet (4.3.2)."""

    batch_rows: int  # images of a minibatch; the paper prints none
    decay: float = 0.9  # of RMSProp's moving average
    eps: float = 0.1  # of RMSProp
    l2: float = 4e-5  # weight of the L2 regularisation
    label_smoothing: float = 0.1  # of the loss
    auxiliary_weight: float = 0.4  # of the auxiliary head's loss; our AmoebaNet has no such head
    dropout: float = 0.5  # probability, of the final layer
    partitions: int = 4  # K, replicated by data parallelism
    pixels: int = 480  # of an image's side
    lr_an_image: float = 0.00125  # initial learning rate, times the minibatch
    lr_decay: float = 0.97  # what multiplies it every so often
    lr_decay_epochs: int = 3  # how often, in epochs

    def optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return the optimizer of a stage's parameters."""
        lr = self.lr_an_image * self.batch_rows
        return RMSprop(parameters, lr, alpha=self.decay, eps=self.eps, weight_decay=self.l2)

    def scheduler(self, optimizer: Optimizer, steps_an_epoch: int) -> LRScheduler:
        """Return what sets the learning rate; stepped after each update, as the engine does."""
        length = steps_an_epoch * self.lr_decay_epochs
        return LambdaLR(optimizer, lambda step: self.lr_decay ** (step // length))

    def loss(self) -> nn.CrossEntropyLoss:
        """Return the loss of the main head."""
        return nn.CrossEntropyLoss(label_smoothing=self.label_smoothing)

    def pipeline(
        self, model: nn.Sequential, steps_an_epoch: int, microbatches: int = 16, replicas: int = 1
    ) -> Pipeline:
        """Return a pipeline that trains as 4.3.2 did, ``replicas`` of it side by side.

        ``model`` is say :func:`giant_amoebanet`'s; a replica's minibatch has ``microbatches``.
        """
        return Pipeline(
            model,
            _replicated(self.partitions, microbatches, replicas),
            optimizer=self.optimizer,
            lr_scheduler=partial(self.scheduler, steps_an_epoch=steps_an_epoch),
            loss=self.loss(),
            recompute="always",
        )

    def __str__(self) -> str:
        return (
            f"RMSProp decay {self.decay:g} eps {self.eps:g}; L2 {_plain(self.l2)}; label smoothing "
            f"{self.label_smoothing:g}; aux head {self.auxiliary_weight:g}; dropout "
            f"{self.dropout:g}; {self.partitions} partitions"
        )


@dataclass(frozen=True)
class FineTuning:
    """Training on another data set, all but the last layer from ImageNet (4.3.3).

    Learning rate and L2 weight were chosen for each data set on held-out images.
    """

    steps: int = 20_000  # updates
    batch_rows: int = 256  # images of a minibatch
    momentum: float = 0.9  # of SGD; not printed, 0.9 is usual
    runs: int = 5  # whose accuracies are averaged
    augmentations: Sequence[str] = ("cutout", "flip")  # of the images
    pixels: int = 480  # of an image's side

    def pipeline(
        self, model: nn.Sequential, classes: int, lr: float, l2: float, microbatches: int = 16
    ) -> Pipeline:
        """Return a pipeline of 4 stages that trains as 4.3.3 did.

        ``model`` is a :func:`giant_amoebanet` trained on ImageNet, whose last layer is replaced by
        one for ``classes``; ``l2`` is the weight of the L2 regularisation.
        """
        features = int(model[-1].get_parameter("linear.1.weight").shape[1])
        dropout = model[-1].get_submodule("linear.0")
        model[-1].linear = nn.Sequential(dropout, nn.Linear(features, classes))
        return Pipeline(
            model,
            _replicated(4, microbatches, 1),
            optimizer=partial(SGD, lr=lr, momentum=self.momentum, weight_decay=l2),
            loss=nn.CrossEntropyLoss(),
            recompute="always",
        )

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, batch {self.batch_rows}, SGD momentum, {self.runs} runs, "
            + ", ".join(self.augmentations)
        )


def giant_amoebanet(
    normal_cells: int = 18, filters: int = 512, classes: int = 1000, dropout: float = 0.5
) -> nn.Sequential:
    """Return an AmoebaNet-D (L, F) with dropout, in place of the paper's AmoebaNet-B (6, 512).

    The cells of AmoebaNet-B, its auxiliary head and its drop-path are not in pipekit.  The normal
    cells are those of all three groups: three times L.  The dropout is before the last layer.
    """
    model = amoebanet_d(normal_cells, filters, classes)
    convert_batch_norm(model)
    last = model[-1].get_submodule("linear")
    model[-1].linear = nn.Sequential(nn.Dropout(dropout), last)
    return model


def findings() -> list[Finding]:
    """Return whether what these settings train with is what 4.3.2 and 4.3.3 print.

    The values are read back from the optimizer and the loss that they make.
    """
    giant = ImageNet(batch_rows=4096)
    optimizer = giant.optimizer([nn.Parameter(torch.zeros(1))])
    used = ImageNet(
        giant.batch_rows,
        decay=optimizer.defaults["alpha"],
        eps=optimizer.defaults["eps"],
        l2=optimizer.defaults["weight_decay"],
        label_smoothing=giant.loss().label_smoothing,
    )
    rates = learning_rates(optimizer, giant.scheduler(optimizer, steps_an_epoch=5), 12 * 5)
    falling = rates == [0.00125 * 4096 * 0.97 ** (step // 5 // 3) for step in range(60)]
    no_model = "the auxiliary head and the drop-path are only noted: no model here has them"
    every_step = "every step of 12 epochs, stepped after each update"
    hparams, recipe = "gpipe-sec432-hparams", "gpipe-sec433-finetune-recipe"
    tuned = str(FineTuning()) == printed(recipe)
    return [
        Finding.exact(hparams, str(used) == printed(hparams), no_model),
        Finding.exact("gpipe-sec432-lr-schedule", falling, every_step),
        Finding.exact(recipe, tuned, "momentum is not printed: 0.9"),
    ]


def _replicated(stages: int, microbatches: int, replicas: int) -> Schedule:
    return replicate(gpipe(stages, microbatches), replicas)


def _plain(number: float) -> str:
    """Return a number as the ledger writes it: 4e-5 where Python says 4e-05."""
    mantissa, mark, exponent = f"{number:g}".partition("e")
    return f"{mantissa}{mark}{int(exponent)}" if mark else mantissa
