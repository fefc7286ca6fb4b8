"""Batches, cut into microbatches by their rows, whatever containers hold their entries."""

import copy
from collections import deque
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipekit.trees import Tree, leaves, refill, sequence_like

_CONTAINERS = (Mapping, tuple, list)
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Plain:
    """A batch without its tensors."""

    rest: Any  # the batch with the class Tensor in place of each tensor

    def joined(self, tensors: Iterable[Tensor]) -> Any:
        """Return the whole batch, given its tensors."""
        each = iter(tensors)
        return pytree.tree_map(lambda leaf: next(each) if leaf is Tensor else leaf, self.rest)


class Batch(NamedTuple):
    """A batch on its way into the pipeline."""

    input: Tree  # of the first layer; None for workers that do not run it
    target: Tree  # the second argument of the loss, in any containers; or None likewise
    rows: int
    row_shapes: Shapes  # of each tensor of the input
    sizes: Sequence[int]  # the rows of each microbatch
    # Of a target that is a whole batch, which entries are rows, as far as the user has said it.
    said: Mapping[Any, bool] | None = None
    kept: Collection[Any] = ()  # entries of the input that have no rows, though as many elements
    chunks: int = 1  # of each sequence, a row each

    def cut_input(self) -> list[Tree]:
        """Return the model's input for each microbatch."""
        parts, whole = split(self.input, self.sizes), self.input
        if isinstance(whole, dict):
            return [part | {name: whole[name] for name in self.kept} for part in parts]
        if self.kept:
            places = range(len(whole))
            return [tuple((whole if n in self.kept else x)[n] for n in places) for x in parts]
        return parts

    def cut_target(self, sizes: Sequence[int] | None = None) -> list[Any]:
        """Return the second argument of the loss for each microbatch, or for so many rows each."""
        sizes = sizes or self.sizes
        if self.said is None:
            return cut_entry(self.target, sizes)
        return cut(self.target, sizes, self.said)


def split(tree: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Cut a structure of tensors [rows, ...] into parts; those of another length stay whole."""
    if isinstance(tree, Tensor):
        return cut_entry(tree, sizes)
    each = [cut_entry(tensor, sizes) for tensor in leaves(tree)]
    return [refill(tree, parts) for parts in zip(*each, strict=True)]


def part_sizes(rows: int, parts: int) -> list[int]:
    """Return the rows of each part; with fewer rows than parts the first get none.

    The last one is never empty, since its passes do the work at the end of a batch.
    """
    least, more = divmod(rows, parts)
    sizes = [least + 1] * more + [least] * (parts - more)
    return sizes if least else sizes[::-1]


def copied(batch: Any) -> Any:
    """Return a user's batch with copies of its tensors and arrays, in memory of its own."""
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping):
        return _mapping_like(batch, map(copied, batch.values()))
    if isinstance(batch, (tuple, list)):
        return sequence_like(type(batch), [copied(entry) for entry in batch])
    return copy.copy(batch) if is_array(batch) else batch


def parted(batch: Any) -> tuple[Tree, Plain | None]:
    """Return a batch's tensors and the rest; of one with tensors alone, itself and None."""
    leaves = pytree.tree_leaves(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if len(tensors) == len(leaves):
        return batch, None
    rest = pytree.tree_map(lambda leaf: Tensor if isinstance(leaf, Tensor) else leaf, batch)
    return tensors, Plain(rest)


def cut(batch: Any, sizes: Sequence[int], said: Mapping[Any, bool] | None = None) -> list[Any]:
    """Cut each entry of a dict or a tuple into parts of rows; ``said`` is the user's word."""
    said = said or {}
    names = [*batch] if isinstance(batch, Mapping) else [*range(len(batch))]
    each = []
    for name in names:
        if said.get(name) and not has_one_a_row(batch[name], sum(sizes)):
            raise ValueError(
                f"the batch[{name!r}] does not have one element for each of {sum(sizes)} rows: "
                f"leave it out of Execution(rows=...), or set it to False there"
            )
        whole = said.get(name) is False
        each.append([batch[name]] * len(sizes) if whole else cut_entry(batch[name], sizes))
    parts = [list(items) for items in zip(*each, strict=True)] if each else [[] for _ in sizes]
    if isinstance(batch, Mapping):
        return [_mapping_like(batch, items) for items in parts]
    return [sequence_like(type(batch), items) for items in parts]


def _mapping_like(batch: Mapping[Any, Any], entries: Iterable[Any]) -> Any:
    """Return other entries by the same names, of a type that a user's function may know."""
    fresh: Any = copy.copy(batch) if isinstance(batch, MutableMapping) else {}
    for name, entry in zip(batch, entries, strict=True):
        fresh[name] = entry  # one by one: outputs of transformers refuse update()
    return fresh


def cut_entry(entry: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut an entry into parts of so many rows, or its own entries; what has no rows stays whole."""
    if not has_one_a_row(entry, sum(sizes)):
        return cut(entry, sizes) if isinstance(entry, _CONTAINERS) else [entry] * len(sizes)
    if isinstance(entry, Tensor):
        return list(torch.split(entry, list(sizes)))
    if isinstance(entry, deque):  # which has no slices
        entry = list(entry)
    return [entry[stop - size : stop] for size, stop in zip(sizes, accumulate(sizes), strict=True)]


def has_one_a_row(entry: Any, rows: int) -> bool:
    """Return whether an entry is cut by rows.

    A list of ``rows`` tensors that have ``rows`` rows each is a structure of them.
    """
    if is_array(entry):
        return entry.ndim > 0 and len(entry) == rows
    if not isinstance(entry, Sequence) or isinstance(entry, (str, bytes)) or len(entry) != rows:
        return False
    leaves = [leaf for leaf in pytree.tree_leaves(entry) if is_array(leaf)]
    return not leaves or not all(has_one_a_row(leaf, rows) for leaf in leaves)


def is_array(entry: Any) -> bool:
    """Return whether an entry is a tensor, an array of NumPy, a column of pandas or the like."""
    return hasattr(entry, "__array__") and hasattr(entry, "ndim")
