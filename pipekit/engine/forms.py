"""What a message looks like without its values: enough to make room for it and to rebuild it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipekit.engine.parcels import strides_to_keep
from pipekit.engine.trees import Tree

Form = Any  # Layout | tuple[type, tuple[Form, ...]] | tuple[dict, tuple[tuple[key, Form], ...]]


class Layout(NamedTuple):
    """How one tensor lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


def form_of(message: Tree) -> Form:
    """Return the form of a message; it can be compared, hashed and pickled."""
    if isinstance(message, Tensor):
        return Layout(message.shape, strides_to_keep(message), message.dtype)
    if isinstance(message, dict):
        return dict, tuple((key, form_of(item)) for key, item in message.items())
    return type(message), tuple(form_of(item) for item in message)


def layouts(form: Form) -> Iterator[Layout]:
    """Yield the layouts of a form, in the order of :func:`pipekit.engine.trees.leaves`."""
    if isinstance(form, Layout):
        yield form
        return
    kind, items = form
    for item in items:
        yield from layouts(item[1] if kind is dict else item)


def assemble(form: Form, tensors: Iterator[Tensor]) -> Tree:
    """Return the message of this form that consists of these tensors."""
    if isinstance(form, Layout):
        return next(tensors)
    kind, items = form
    if kind is dict:
        return {key: assemble(item, tensors) for key, item in items}
    built = [assemble(item, tensors) for item in items]
    return kind(*built) if hasattr(kind, "_fields") else kind(built)
