"""What a message looks like without its values: enough to make room for it and to rebuild it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipekit.devices import is_accelerator
from pipekit.trees import Tree, sequence_like

Form = Any
"""None, a Layout, (type, forms), or (dict, pairs of a key and a form)."""


class Layout(NamedTuple):
    """How one tensor lies in memory, and in whose: lengths, say, may stay on the host."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool = True

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


def form_of(message: Tree) -> Form:
    """Return the form of a message; it can be compared, hashed and pickled."""
    if message is None:
        return None
    if isinstance(message, Tensor):
        shape, strides = message.shape, message.stride()
        if 0 in strides and any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True)):
            strides = message.contiguous().stride()  # several of its elements share memory
        return Layout(shape, strides, message.dtype, not is_accelerator(message.device))
    if isinstance(message, dict):
        return dict, tuple((key, form_of(item)) for key, item in message.items())
    return type(message), tuple(form_of(item) for item in message)


def layouts(form: Form) -> Iterator[Layout]:
    """Yield the layouts of a form, in the order of :func:`pipekit.trees.leaves`."""
    if form is None or isinstance(form, Layout):
        yield from () if form is None else (form,)
        return
    kind, items = form
    for item in items:
        yield from layouts(item[1] if kind is dict else item)


def assemble(form: Form, tensors: Iterator[Tensor]) -> Tree:
    """Return the message of this form that consists of these tensors."""
    if form is None or isinstance(form, Layout):
        return None if form is None else next(tensors)
    kind, items = form
    if kind is dict:
        return {key: assemble(item, tensors) for key, item in items}
    return sequence_like(kind, [assemble(item, tensors) for item in items])


def with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a tensor of the same values with the given strides."""
    if tensor.stride() == strides:
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)
