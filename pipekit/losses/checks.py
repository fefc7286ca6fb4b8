"""Whether a loss can be trained on, and is for a batch that of its microbatches together."""

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.layers.pass_state import rounding
from pipekit.layers.split_backward import weights_in_graph


def require_loss(loss: object) -> None:
    """Raise TypeError or ValueError unless it is one number that something trained has made."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TypeError("the loss must return a tensor with one number for each microbatch")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on anything that is trained: compute it from the model's "
            "output by torch's functions, without .item(), .detach() or torch.tensor(...), and "
            "leave some parameters with requires_grad"
        )


def require_no_weights(loss: Tensor, outputs: Iterable[Tensor]) -> None:
    """Raise ValueError if a loss reads weights besides those behind the model's outputs.

    Nobody would train them: the stages have copies of the model's weights, and the optimizers have
    these only.
    """
    ends = list(outputs)
    beside = list(weights_in_graph([loss], ends))
    # Few losses have any: only then is the stage's own graph walked through.
    behind = set(weights_in_graph(ends)) if beside else ()
    for weight in beside:
        if weight not in behind:
            raise ValueError(
                f"the loss computes with a weight of shape {list(weight.shape)} that no stage "
                f"trains, so that it would never change. A loss's own weights belong into the "
                f"model: let its last layer return what they make. So does a penalty on the "
                f"model's weights, unless it is the optimizer's weight_decay. Of weights that are "
                f"not to be trained call .requires_grad_(False)"
            )


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
    """Warn of a loss of torch's that is not, over some rows, what its parts are together."""
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
