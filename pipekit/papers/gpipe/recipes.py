"""The trainings of 4.3.2 and 4.3.3, for those who have the images and the accelerators."""

from functools import partial

from torch import nn

from pipekit.batch_norm import convert_batch_norm
from pipekit.engine import Pipeline
from pipekit.models import amoebanet_d
from pipekit.papers.gpipe.settings import FineTuning, ImageNet
from pipekit.schedules import Schedule, gpipe, replicate


def giant_amoebanet(
    normal_cells: int = 18, filters: int = 512, classes: int = 1000, dropout: float = 0.5
) -> nn.Sequential:
    """Return an AmoebaNet-D (L, F) with dropout, in place of the paper's AmoebaNet-B (6, 512).

    The cells of AmoebaNet-B, its auxiliary head and its drop-path are not in pipekit.

    Args:
        normal_cells: of all three groups; the paper's L is a third of this.
        filters: F.
        classes: of the images.
        dropout: probability, before the last layer.
    """
    model = amoebanet_d(normal_cells, filters, classes)
    convert_batch_norm(model)
    last = model[-1].get_submodule("linear")
    model[-1].linear = nn.Sequential(nn.Dropout(dropout), last)
    return model


def imagenet(
    model: nn.Sequential,
    steps_an_epoch: int,
    training: ImageNet,
    microbatches: int = 16,
    replicas: int = 1,
) -> Pipeline:
    """Return a pipeline that trains as 4.3.2 did, on ``replicas`` times 4 accelerators.

    Args:
        model: say :func:`giant_amoebanet`'s.
        steps_an_epoch: minibatches of the data.
        training: its settings.
        microbatches: of a minibatch, on each replica.
        replicas: pipelines side by side (data parallelism).
    """
    return Pipeline(
        model,
        partial(_schedule, training.partitions, microbatches, replicas),
        optimizer=training.optimizer,
        lr_scheduler=partial(training.scheduler, steps_an_epoch=steps_an_epoch),
        loss=training.loss(),
        recompute="always",
    )


def fine_tuning(
    model: nn.Sequential,
    classes: int,
    lr: float,
    l2: float,
    training: FineTuning,
    partitions: int = 4,
    microbatches: int = 16,
) -> Pipeline:
    """Return a pipeline that trains as 4.3.3 did: a new last layer, the others as trained.

    Args:
        model: trained on ImageNet; its last layer is replaced.
        classes: of the new images.
        lr: learning rate, chosen on held-out images.
        l2: weight of the L2 regularisation, likewise.
        training: the other settings.
        partitions: K.
        microbatches: T.
    """
    features = int(model[-1].get_parameter("linear.1.weight").shape[1])
    dropout = model[-1].get_submodule("linear.0")
    model[-1].linear = nn.Sequential(dropout, nn.Linear(features, classes))
    return Pipeline(
        model,
        partial(_schedule, partitions, microbatches, 1),
        optimizer=training.optimizer(lr, l2),
        loss=nn.CrossEntropyLoss(),
        recompute="always",
    )


def _schedule(stages: int, microbatches: int, replicas: int, batches: int) -> Schedule:
    return replicate(gpipe(stages, microbatches, batches), replicas)
