"""The loss of a training that names none."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipekit.trees import leaves


def default_loss(output: Any, target: Tensor) -> Tensor:
    """Return the mean cross entropy of classes, or the mean squared error of other numbers.

    Args:
        output: a tensor, or a structure: its "logits", else its first floating-point tensor.
        target: whole numbers: classes ``[rows, ...]`` of logits ``[rows, ..., classes]``, or of
            ``[rows, classes, ...]`` as torch's own ``cross_entropy`` takes them; those of -100 do
            not count.  Floating-point numbers: of the output's shape.

    Raises:
        ValueError: neither is so; the message gives both shapes.
    """
    logits = main_output(output)
    if target.is_floating_point() and target.shape == logits.shape:
        return F.mse_loss(logits, target)
    if not target.is_floating_point():
        if logits.shape[:-1] == target.shape:
            return F.cross_entropy(logits.flatten(0, -2), target.flatten())
        if logits.ndim > 1 and (len(logits), *logits.shape[2:]) == tuple(target.shape):
            return F.cross_entropy(logits, target)
    raise ValueError(
        f"no loss is known for an output {list(logits.shape)} and a target {list(target.shape)} of "
        f"{target.dtype}: name one"
    )


def default_loss_of_entry(entry: str, output: Any, batch: Mapping[str, Any]) -> Tensor:
    """Return :func:`default_loss` of an output and one entry of the batch, which is a dict."""
    return default_loss(output, batch[entry])


def made_up_target(output: Any) -> Tensor:
    """Return class 0 for every place of an output; of ``[rows]``, zeros like it."""
    logits = main_output(output)
    if logits.ndim > 1:
        return logits.new_zeros(logits.shape[:-1], dtype=torch.int64)
    return torch.zeros_like(logits)


def main_output(output: Any) -> Tensor:
    """Return what a loss looks at: "logits" if there are such, else the first numbers.

    Raises:
        ValueError: nothing in the output is floating-point.
    """
    logits = output.get("logits") if isinstance(output, dict) else None
    if isinstance(logits, Tensor):
        return logits
    for tensor in leaves(output):
        if tensor.is_floating_point():
            return tensor
    raise ValueError("no tensor of the output is floating-point: it has no loss")
