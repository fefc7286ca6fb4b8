"""Whether a loss can be trained on, and is for a batch that of its microbatches together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pipekit.host.user_frames import warn
from pipekit.layers.pass_state import rounding
from pipekit.losses.losses import MeanOver

_MEAN_OVER = (
    "A mean over labels that count, or with class weights, is a pipekit.MeanOver(summed, count)"
)


def require_loss(loss: object) -> None:
    """Raise TypeError or ValueError unless it is one number that something trained has made."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = type(loss).__name__
        shown += f" of shape {list(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise TypeError(
            f"the loss must return a tensor with one number for each microbatch, not {shown}: "
            f"return what is minimized, and give other numbers by evaluate(batches, metric=...)"
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on anything that is trained: compute it from the model's "
            "output by torch's functions, without .item(), .detach() or torch.tensor(...), and "
            "leave some parameters with requires_grad"
        )


def require_no_weights(loss: Tensor, given: Iterable[Tensor]) -> None:
    """Raise ValueError if a loss reads weights, not behind what it is given, that nobody trains."""
    ends = list(given)
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


def nodes(tensors: Iterable[Tensor], ends: Iterable[Tensor] = ()) -> Iterator[Node]:
    """Yield every node from which one of the tensors comes, once each."""
    # Nodes are told apart by their Python objects, which live as long as somebody holds them.
    seen = dict.fromkeys(map(attrgetter("grad_fn"), ends))
    left = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen[node] = None
        yield node
        left += [following for following, _ in node.next_functions if following is not None]


def weights_in_graph(tensors: Iterable[Tensor], ends: Iterable[Tensor] = ()) -> Iterator[Tensor]:
    """Yield the weights that a backward from these tensors comes to, or that are among them."""
    roots = list(tensors)
    for each in chain(roots, nodes(roots, ends)):
        leaf = each if isinstance(each, Tensor) else getattr(each, "variable", None)
        if leaf is not None and leaf.is_leaf and leaf.requires_grad:
            yield leaf


def is_mean(loss: Callable[..., Any]) -> bool:
    """Return whether a loss is a mean over rows: all but those that say that they sum."""
    return getattr(loss, "reduction", "mean") != "sum"


def refusal_of_reading(does: str) -> str:
    """Return why a loss must not read what training changes, in the model that the user has."""
    return (
        f"the loss {does} of the model that the pipeline was given, which no stage trains or runs, "
        f"since they have copies of it: it would never change. Move this part of the loss into the "
        f"model: its last layer returns it, an auxiliary loss or a penalty, beside the output (a "
        f"penalty may also be the optimizer's weight_decay); a teacher is another model, "
        f"copy.deepcopy(model).requires_grad_(False)"
    )


def another_whole(
    loss: Callable[[Any, Any], Any],
    whole: tuple[float, int],
    parts: Sequence[tuple[float, int]],
    target: Any,
    dtype: torch.dtype,
) -> str:
    """Return in words how a loss of all rows differs from that of their parts together; else "".

    ``whole`` and ``parts`` are its values, computed in ``dtype``, and numbers of rows; ``target``
    is that of all rows.
    """
    one, rows = whole
    counted = loss.count(target) if isinstance(loss, MeanOver) else 1.0
    by_rows = is_mean(loss) and not isinstance(loss, MeanOver)
    terms = [value * (count / rows if by_rows else 1.0) for value, count in parts if count]
    found = sum(terms)
    # Terms may cancel out: a sum is as exact as its largest ones.
    scale = max(abs(one), sum(map(abs, terms)))
    if not counted or not isfinite(one) or abs(found - one) <= rounding(dtype) * scale + 1e-6:
        return ""
    return (
        f"the loss of {rows} rows is {one / counted:.4g}, and that of their {len(terms)} "
        f"microbatches together {found / counted:.4g}"
    )


def warn_of_another_whole(told: str, cut: Sequence[str]) -> None:
    """Warn of a loss of which it is ``told`` how it differs; ``cut`` says what is cut by rows."""
    warn(
        f"{told} (asked before training, of outputs of the first microbatch, with "
        f"{', '.join(cut) or 'nothing'} cut by rows): training minimizes the latter. {_MEAN_OVER}; "
        f"a loss that is a sum over rows, or a mean that somebody has divided by a count of the "
        f"whole batch, says so by loss.reduction = 'sum'; one that compares rows, as contrastive "
        f"losses do, needs one microbatch a batch"
    )
