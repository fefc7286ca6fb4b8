"""Whether a graph can be for images of any height and width."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.templates import tensors
from pipekit.partition.recording.untouched import run_to_look_at

IMAGE_DIMENSIONS = 4
"""Rows, channels, height and width."""

_VIEWS = ("view", "reshape", "unflatten")


_View = tuple[list[Any], torch.Size]
"""The integers that a view was given, and the lengths of its input."""


def images_vary(model: nn.Module, example: Any) -> bool:
    """Return whether a model takes images twice as large, and cuts none into windows or patches.

    Where it does, torch's solver reasons about rounded heights and widths without an end.  Such a
    cut shows in a view: it names a length that changes with the image, and that its input has not.
    """
    if not any(map(_is_image, tensors(example))):
        return False
    try:
        views = _viewed(model, example)
        larger = _viewed(model, pytree.tree_map(_twice_as_large, example))
    except Exception:  # whatever it says of that image
        return False
    return len(views) == len(larger) and not any(map(_is_cut, views, larger))


def _is_cut(one: _View, other: _View) -> bool:
    (lengths, shape), (others, other_shape) = one, other
    own = {*zip(shape, other_shape, strict=False)}
    changed = {(n, m) for n, m in zip(lengths, others, strict=False) if n != m}
    return not changed <= own


@torch.no_grad()
def _viewed(model: nn.Module, batch: Any) -> list[_View]:
    """Return all views of a forward, in order."""
    views = _Views()
    with run_to_look_at(model), views:
        batches.call(model, batch)
    return views.found


class _Views(TorchFunctionMode):
    """Notes what views are given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_View] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in _VIEWS:
            given = pytree.tree_leaves((args[1:], kwargs))
            self.found.append(([n for n in given if isinstance(n, int)], args[0].shape))
        return function(*args, **(kwargs or {}))


def _twice_as_large(leaf: Any) -> Any:
    """Return an image of twice the height and width; all else as it is."""
    return leaf.repeat(*[1] * (leaf.dim() - 2), 2, 2) if _is_image(leaf) else leaf


def _is_image(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() >= IMAGE_DIMENSIONS
