"""Small networks by name, each with real data that it learns on a CPU in seconds."""

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
from pipekit.metrics import ACCURACY, BITS_PER_BYTE, Metric
from pipekit.models import convnet, gpt, image_mlp, token_loss

SEQUENCE = 64
"""Bytes of a row of text."""


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


def _text(build: Callable[[], nn.Sequential]) -> Workload:
    return Workload(
        build,
        sample=lambda rows: torch.randint(BYTES, (rows, SEQUENCE)),
        data=partial(python_source, SEQUENCE, rows=9000, test_rows=1000),
        loss=token_loss,
        metric=BITS_PER_BYTE,
        text=partial(text_file, sequence=SEQUENCE),
    )


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "convnet": _images(convnet),
        "mlp": _images(image_mlp),
        "gpt": _text(lambda: gpt(4, 64, 4, BYTES, SEQUENCE)),
    }
)
"""By name, for the command line."""
