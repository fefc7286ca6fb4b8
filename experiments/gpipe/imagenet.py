"""The trainings of 4.3.2 and 4.3.3, for those who have the images and accelerators.

What the paper does not print has PyTorch's default, such as RMSProp's momentum of 0.
"""

from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from pipekit.engine import Execution, Pipeline, Updates
from pipekit.layers.batch_norm import convert_batch_norm
from pipekit.models import amoebanet_d
from pipekit.schedules import gpipe, replicate

PARTITIONS, PIXELS, DROPOUT = 4, 480, 0.5
"""K, replicated by data parallelism; an image's side; probability, before the last layer."""

AUXILIARY_WEIGHT = 0.4
"""Of the auxiliary head's loss; only noted, as our AmoebaNet has no such head."""

LOSS = nn.CrossEntropyLoss(label_smoothing=0.1)

TUNING_STEPS, TUNING_ROWS, TUNING_RUNS = 20_000, 256, 5
"""Of 4.3.3: updates, images of a minibatch, and runs whose accuracies are averaged."""

AUGMENTATIONS = "cutout", "flip"


@dataclass(frozen=True)
class ImageNet:
    """Training AmoebaNet-B (6, 512) on ImageNet (4.3.2)."""

    batch_rows: int  # images of a minibatch; the paper prints none

    def optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return the optimizer of a stage's parameters."""
        lr = 0.00125 * self.batch_rows
        return RMSprop(parameters, lr, alpha=0.9, eps=0.1, weight_decay=4e-5)

    def scheduler(self, optimizer: Optimizer, steps_an_epoch: int) -> LRScheduler:
        """Return what sets the learning rate; stepped after each update, as the engine does."""
        return LambdaLR(optimizer, lambda step: 0.97 ** (step // (3 * steps_an_epoch)))

    def pipeline(
        self, model: nn.Sequential, steps_an_epoch: int, microbatches: int = 16, replicas: int = 1
    ) -> Pipeline:
        """Return a pipeline of a :func:`giant_amoebanet`, ``replicas`` of it side by side.

        A replica's minibatch has so many ``microbatches``.
        """
        return Pipeline(
            model,
            replicate(gpipe(PARTITIONS, microbatches), replicas),
            optimizer=self.optimizer,
            updates=Updates(lr_scheduler=partial(self.scheduler, steps_an_epoch=steps_an_epoch)),
            execution=Execution(recompute="always"),
            loss=LOSS,
        )


def fine_tuning(
    model: nn.Sequential, classes: int, lr: float, l2: float, microbatches: int = 16
) -> Pipeline:
    """Return a pipeline that trains as 4.3.3 did, on another data set.

    ``model`` is a :func:`giant_amoebanet` trained on ImageNet, whose last layer is replaced by one
    for ``classes``; ``lr`` and ``l2``, the weight of the L2 regularisation, were chosen for each
    data set on held-out images.  SGD's momentum is not printed; 0.9 is usual.
    """
    dropout, last = model[-1].get_submodule("linear.0"), model[-1].get_submodule("linear.1")
    features = int(last.get_parameter("weight").shape[1])
    model[-1].linear = nn.Sequential(dropout, nn.Linear(features, classes))
    optimizer = partial(SGD, lr=lr, momentum=0.9, weight_decay=l2)
    schedule, loss = gpipe(PARTITIONS, microbatches), nn.CrossEntropyLoss()
    return Pipeline(
        model, schedule, optimizer=optimizer, loss=loss, execution=Execution(recompute="always")
    )


def giant_amoebanet(
    normal_cells: int = 18, filters: int = 512, classes: int = 1000
) -> nn.Sequential:
    """Return an AmoebaNet-D (L, F) with dropout, in place of the paper's AmoebaNet-B (6, 512).

    The cells of AmoebaNet-B, its auxiliary head and its drop-path are not in pipekit.  The normal
    cells are those of all three groups: three times L.
    """
    model = amoebanet_d(normal_cells, filters, classes)
    convert_batch_norm(model)
    last = model[-1].get_submodule("linear")
    model[-1].linear = nn.Sequential(nn.Dropout(DROPOUT), last)
    return model
