"""What layers pass on: a tensor, or tuples, lists and dicts of tensors, and of None."""

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves

Tree = Any  # Tensor | tuple[Tree | None, ...] | list[Tree | None] | dict[str, Tree | None]


def tree_map(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Return the same structure with ``function`` applied to every tensor; refuse other leaves."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {k: v if v is None else tree_map(function, v) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = (item if item is None else tree_map(function, item) for item in tree)
        return sequence_like(type(tree), items)
    raise _refused(tree)


def sequence_like(kind: Any, items: Iterable[Any]) -> Any:
    """Return a list or tuple of a kind; what a named tuple's own ``__new__`` does has been done."""
    return kind._make(items) if hasattr(kind, "_fields") else kind(items)


def _refused(tree: Tree) -> TypeError:
    return TypeError(
        f"layers and batches must pass tensors, or tuples, lists and dicts of tensors, "
        f"not {type(tree).__name__}{remedy(tree)}"
    )


def remedy(value: object) -> str:
    """Return what makes tensors of an array, a number, a text or a dataclass, for messages."""
    is_number = isinstance(value, (int, float, complex))
    if is_number or hasattr(value, "__array__"):
        return ": torch.as_tensor(...) makes a tensor of an array or a list of numbers"
    if isinstance(value, str):
        return ": a tokenizer makes tensors of texts, and the loss may read texts in a dict"
    return ": vars(...) makes a dict of its fields" if is_dataclass(value) else ""


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a structure, in order; refuse other leaves."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        return [tensor for item in tree if item is not None for tensor in leaves(item)]
    raise _refused(tree)


def tensors_in(structure: Any) -> list[Tensor]:
    """Return the tensors in a structure that may hold anything else, too."""
    return [leaf for leaf in tree_leaves(structure) if isinstance(leaf, Tensor)]


def tree_bytes(tree: Tree) -> int:
    """Return the bytes of a structure's tensors, as they would be sent."""
    return sum(tensor.nbytes for tensor in leaves(tree))


def refill(tree: Tree, tensors: Iterable[Tensor]) -> Tree:
    """Return the same structure with other tensors, in the order of :func:`leaves`."""
    others = iter(tensors)
    return tree_map(lambda _: next(others), tree)


def differentiable(tree: Tree) -> list[Tensor]:
    """Return the tensors through which gradients flow: the floating-point and complex ones."""
    # Asked of the dtype: a tensor's own methods let go of the interpreter.
    return [t for t in leaves(tree) if t.dtype.is_floating_point or t.dtype.is_complex]


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is its numbers: neither sparse, nor of a class of its own."""
    if isinstance(tensor, UninitializedParameter) or type(tensor.data) is not Tensor:
        return False
    return tensor.layout is torch.strided and not tensor.is_quantized
