"""The networks that networks.py trains, each with a batch of 16 microbatches and its loss."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit import models

MICROBATCHES = 16


class Network(NamedTuple):
    """What is trained: a model, a batch for it, and the loss."""

    model: Callable[[], nn.Sequential]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Any], Tensor]
    timed: int  # batches on the clock


def wide_layers() -> nn.Sequential:
    """Return 8 layers of width 512."""
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())])


def small_gpt() -> nn.Sequential:
    """Return a GPT of 10 million parameters."""
    return models.gpt(12, 256, 4, vocabulary=256, sequence=64)


def small_images() -> tuple[Tensor, Tensor]:
    """Return 32 images of 64 pixels."""
    return torch.rand(2 * MICROBATCHES, 3, 64, 64), torch.randint(10, (2 * MICROBATCHES,))


def tokens() -> tuple[Tensor, Tensor]:
    """Return 16 sequences of 64 bytes."""
    drawn = torch.randint(256, (MICROBATCHES, 65))
    return drawn[:, :-1], drawn[:, 1:]


NETWORKS = {
    "width 512": Network(
        wide_layers,
        lambda: (torch.rand(64 * MICROBATCHES, 512), torch.rand(64 * MICROBATCHES, 512)),
        nn.MSELoss(),
        timed=40,
    ),
    "gpt": Network(small_gpt, tokens, models.token_loss, timed=2),
    "resnet50": Network(partial(models.resnet50, 10), small_images, nn.CrossEntropyLoss(), timed=2),
}
