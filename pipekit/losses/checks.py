"""Whether what a loss returns can be trained on."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pipekit.layers.autograd_graph import weights_in_graph


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

    Args:
        loss: with autograd's graph.
        outputs: of the model, with theirs.
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
