"""The arguments of a recorded step: their structure, with references in the place of tensors."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipekit.partition.recording.refusal import NotRecordable

Template = Any  # Container | Value | NamedWeight | Constant | Size | StageDevice | a plain value


@dataclass(frozen=True)
class Value:
    """A tensor that the batch holds or a step makes, by its number in the program."""

    number: int


@dataclass(frozen=True)
class NamedWeight:
    """A parameter or buffer, by its name in the unsplit model."""

    name: str


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is the same in every forward and is no parameter or buffer."""

    tensor: Tensor


@dataclass(frozen=True)
class Size:
    """A number that depends on the batch's sizes: an expression of Python in their names."""

    expression: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n in _compiled(self.expression).co_names if n not in _KNOWN)

    def at(self, sizes: Mapping[str, int]) -> Any:
        return eval(_compiled(self.expression), _KNOWN, dict(sizes))


_KNOWN: dict[str, Any] = {"__builtins__": {}, "ceil": math.ceil, "floor": math.floor}


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<size>", "eval")


@dataclass(frozen=True)
class StageDevice:
    """The device on which the stage computes."""


@dataclass(frozen=True, eq=False)
class Container:
    """A container of templates."""

    type: type
    context: Any  # what rebuilds it beside its children
    children: tuple[Template, ...]


def encode(tree: Any, leaf: Callable[[Any], Template]) -> Template:
    """Return the template of ``tree``; ``leaf`` gives those of tensors and of plain values."""
    kind: Any = tuple if type(tree) is torch.Size else type(tree)
    children: Iterable[Any]
    context: Any = None
    if isinstance(tree, Tensor):
        return leaf(tree)
    if kind is slice:
        children = tree.start, tree.stop, tree.step
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        children, context = tree, "fields"
    elif kind in pytree.SUPPORTED_NODES:  # also dictionaries, and the outputs of transformers
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(tree)
    elif _is_plain_dataclass(tree):
        children, context = [getattr(tree, field.name) for field in fields(tree)], "dataclass"
    else:
        return leaf(tree)
    return Container(kind, context, tuple(encode(child, leaf) for child in children))


def _is_plain_dataclass(tree: Any) -> bool:
    """Whether a value is just its fields, tensors among them: a configuration stays an object."""
    if not is_dataclass(tree) or isinstance(tree, type):
        return False
    names = [field.name for field in fields(tree)]
    own = vars(tree).keys() if hasattr(tree, "__dict__") else {*names}
    return own == {*names} and any(tensors(getattr(tree, name)) for name in names)


def decode(template: Template, leaf: Callable[[Any], Any]) -> Any:
    """Return what the template stands for; ``leaf`` resolves references and plain values."""
    if not isinstance(template, Container):
        return leaf(template)
    children = [decode(child, leaf) for child in template.children]
    kind = template.type
    if kind is slice:
        return slice(*children)
    if template.context == "fields":
        return kind(*children)
    if template.context == "dataclass":
        made: Any = object.__new__(kind)  # what its __init__ does has been done
        for field, child in zip(fields(kind), children, strict=True):
            object.__setattr__(made, field.name, child)
        return made
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(children, template.context)


def _nodes(template: Template) -> Iterator[Any]:
    yield template
    if isinstance(template, Container):
        for child in template.children:
            yield from _nodes(child)


def leaves(template: Template) -> Iterator[Any]:
    """Yield the references and plain values of a template, in order."""
    return (node for node in _nodes(template) if not isinstance(node, Container))


def values(template: Template) -> Iterator[int]:
    """Yield the numbers of the values that a template refers to."""
    return (leaf.number for leaf in leaves(template) if isinstance(leaf, Value))


def named_weights(template: Template) -> Iterator[str]:
    """Return the names of the parameters and buffers that a template refers to."""
    return (leaf.name for leaf in leaves(template) if isinstance(leaf, NamedWeight))


def entries(template: Template) -> dict[int, str]:
    """Return what messages call each value of a batch's template: its key, or its place."""
    is_dict = isinstance(template, Container) and issubclass(template.type, dict)
    children = template.children if isinstance(template, Container) else (template,)
    names = map(repr, template.context) if is_dict else (f"input {n}" for n in range(len(children)))
    pairs = zip(names, children, strict=True)
    return {number: name for name, child in pairs for number in values(child)}


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors within real arguments, in the order of their templates' leaves."""
    found: list[Tensor] = []

    def note(leaf: Any) -> None:
        if isinstance(leaf, Tensor):
            found.append(leaf)

    encode(tree, note)
    return found


def require_no_dataclass(tree: Any, what: str) -> None:
    """Raise NotRecordable if the example or the output, which batches pass by, holds one."""
    for node in _nodes(encode(tree, lambda leaf: leaf)):
        if isinstance(node, Container) and node.context == "dataclass":
            raise NotRecordable(
                f"{what} holds a {node.type.__name__}: only between blocks may tensors be in a "
                f"dataclass; pass and return them in tuples, lists or dicts"
            )
