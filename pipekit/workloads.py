"""Small networks by name, each with real data that it learns on a CPU in seconds, and its score."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipekit.datasets import Dataset, mnist, python_source, text_file
from pipekit.datasets.text import BYTES
from pipekit.models import convnet, gpt, image_mlp, token_loss

SEQUENCE = 64  # bytes of a row of text


@dataclass(frozen=True)
class Metric:
    """A number that tells how good outputs are."""

    name: str
    format: str  # as in f"{value:.1%}"
    of: Callable[[Any, Any], Tensor]  # of an output and its target, rows first: the mean over rows

    def shown(self, value: float) -> str:
        """Return a value as text."""
        return format(value, self.format)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of rows whose largest logit is the target's; [B, classes] and [B]."""
    return (output.argmax(dim=1) == target).double().mean()


def bits_per_byte(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of the next byte in bits; ``[B, T, 256]`` and ``[B, T]``.

    8 know nothing of the text (the Pile, Gao et al. 2020, section 3.1).
    """
    return token_loss(logits, targets) / math.log(2)


ACCURACY = Metric("accuracy", ".1%", accuracy)
BITS_PER_BYTE = Metric("bits/byte", ".3f", bits_per_byte)


@dataclass(frozen=True)
class Workload:
    """A network and what it learns."""

    build: Callable[[], nn.Sequential]
    sample: Callable[[int], Tensor]  # an input of so many rows, on PyTorch's default device
    data: Callable[[], Dataset]
    loss: Callable[[Any, Any], Tensor]  # of an output and its target, a mean over rows
    metric: Metric  # of the test data
    text: Callable[[Path], Dataset] | None = None  # data of a text file, if it learns text


def _images(build: Callable[[], nn.Sequential]) -> Workload:
    return Workload(
        build,
        sample=lambda rows: torch.rand(rows, 1, 28, 28),
        data=mnist,
        loss=F.cross_entropy,
        metric=ACCURACY,
    )


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "convnet": _images(convnet),
        "mlp": _images(image_mlp),
        "gpt": Workload(
            lambda: gpt(4, 64, 4, BYTES, SEQUENCE),
            sample=lambda rows: torch.randint(BYTES, (rows, SEQUENCE)),
            data=partial(python_source, SEQUENCE, rows=9000, test_rows=1000),
            loss=token_loss,
            metric=BITS_PER_BYTE,
            text=partial(text_file, sequence=SEQUENCE),
        ),
    }
)
