"""The arguments of a recorded step: as they were given, with references in the place of tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipekit.partition.recording.traced import FUNCTIONS

Template = Any  # a Reference, a plain value, or tuples, lists, dicts, ... of templates


class Reference:
    """What stands for a tensor, or for what is another one in each batch or on each device."""


@dataclass(frozen=True)
class Value(Reference):
    """A tensor that the batch holds or a step makes, by its number in the program."""

    number: int


@dataclass(frozen=True)
class NamedWeight(Reference):
    """A parameter or buffer, by its name in the unsplit model."""

    name: str


@dataclass(frozen=True, eq=False)
class Constant(Reference):
    """A tensor that is the same in every forward and is no parameter or buffer."""

    tensor: Tensor


@dataclass(frozen=True)
class Size(Reference):
    """A number that depends on the batch's sizes: an expression of Python in their names."""

    expression: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n in _compiled(self.expression).co_names if n not in _KNOWN)

    def at(self, sizes: Mapping[str, int]) -> Any:
        return eval(_compiled(self.expression), _KNOWN, dict(sizes))


_KNOWN: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS}


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<size>", "eval")


@dataclass(frozen=True)
class StageDevice(Reference):
    """The device on which the stage computes."""


def opened(tree: Any) -> tuple[Iterable[Any], Callable[[Any], Any]] | None:
    """Return what a container holds, and what makes another one of such things; None of all else.

    Dictionaries, and the outputs of transformers, are those that ``torch.utils._pytree`` knows.
    """
    if isinstance(tree, (Tensor, Reference)):
        return None
    kind: Any = tuple if type(tree) is torch.Size else type(tree)
    if kind is slice:
        return (tree.start, tree.stop, tree.step), lambda children: slice(*children)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return tree, kind._make  # what its __new__ does has been done
    if known := pytree.SUPPORTED_NODES.get(kind):
        children, context = known.flatten_fn(tree)
        return children, lambda children: known.unflatten_fn(children, context)
    return None


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same containers with what ``function`` returns of each leaf: it makes a template
    of arguments, and arguments of a template.
    """
    if (container := opened(tree)) is None:
        return function(tree)
    children, made_of = container
    return made_of([map_leaves(function, child) for child in children])


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what is in arguments or in a template and is no container, in order."""
    if (container := opened(tree)) is None:
        yield tree
    else:
        for child in container[0]:
            yield from leaves(child)


def values(template: Template) -> Iterator[int]:
    """Yield the numbers of the values that a template refers to."""
    return (leaf.number for leaf in leaves(template) if isinstance(leaf, Value))


def named_weights(template: Template) -> Iterator[str]:
    """Return the names of the parameters and buffers that a template refers to."""
    return (leaf.name for leaf in leaves(template) if isinstance(leaf, NamedWeight))


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors within real arguments, in the order of their templates' leaves."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def entries(batch: Template) -> dict[int, str]:
    """Return what messages call each value of a batch's template: its key, or its place."""
    if isinstance(batch, dict):
        named = [(repr(key), child) for key, child in batch.items()]
    else:
        children = batch if isinstance(batch, (tuple, list)) else [batch]
        named = [(f"input {n}", child) for n, child in enumerate(children)]
    return {number: name for name, child in named for number in values(child)}
