"""Whether the loss of a batch is that of its microbatches together."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from pipekit.layers.autocast import rounding


def is_mean(loss: Callable[..., Any]) -> bool:
    """Return whether a loss is a mean over rows: all but those that say that they sum."""
    return getattr(loss, "reduction", "mean") != "sum"


def is_torchs(loss: Callable[..., Any]) -> bool:
    """Return whether a loss is torch's own, which may be asked again and again.

    Others may count their calls, or what they are given.
    """
    if isinstance(loss, partial):
        return is_torchs(loss.func)
    if isinstance(loss, nn.Module):
        hooks = loss._forward_hooks or loss._forward_pre_hooks
        return type(loss).__module__ == "torch.nn.modules.loss" and not hooks
    return getattr(loss, "__module__", None) == "torch.nn.functional"


@torch.no_grad()
def warn_of_other_means(
    loss: Callable[[Any, Any], Any],
    whole: tuple[Any, Any],
    parts: list[tuple[Any, Any]],
    rows: list[int],
) -> None:
    """Warn of a loss of torch's that is not, over some rows, what its parts are together.

    Args:
        loss: one of torch's (:func:`is_torchs`).
        whole: output and target of some rows.
        parts: the same, cut into parts.
        rows: of each part.

    Warns:
        UserWarning: the two losses, and what to do.
    """
    try:
        expected = loss(*whole)
        values = [float(loss(*part)) for part in parts]
    except Exception:  # of whatever kind: training itself will say what is wrong
        return
    shares = [count / sum(rows) if is_mean(loss) else 1.0 for count in rows]
    found = sum(share * value for share, value in zip(shares, values, strict=True))
    one = float(expected)
    if not expected.isfinite() or abs(found - one) <= rounding(expected.dtype) * abs(one) + 1e-7:
        return
    warnings.warn(
        f"the loss of {sum(rows)} rows is {one:.4g}, and that of their parts together {found:.4g}: "
        f"a batch that is cut into microbatches is trained on another loss than the whole one, "
        f"since rows have class weights, or labels that are not ignored, unequally. A "
        f"pipekit.MeanOver is one mean over the whole batch; or train with one microbatch a batch",
        stacklevel=2,
    )
