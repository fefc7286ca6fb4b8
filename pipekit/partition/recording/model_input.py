"""What a recorded model takes of a batch, which may hold more: labels, say."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from pipekit.partition.recording.templates import NamedWeight, Template, Value, leaves
from pipekit.trees import Tree, remedy

_FOR_THE_LOSS = ("label", "target")


@dataclass(frozen=True)
class ModelInput:
    """What the example held."""

    example: Template
    others: frozenset[str]  # the other arguments that the model's forward can be given

    @classmethod
    def of(cls, example: Template, model: nn.Module) -> Self:
        """Return what a model takes that was recorded with an example."""
        known = _names(example)
        others = inspect.signature(model.forward).parameters.keys() - {*known}
        others = {name for name in others if not is_for_the_loss(name)}
        return cls(example, frozenset(others) if known else frozenset())

    def select(self, batch: Any) -> Any:
        """Return the entries that the model takes of a dict, or of a tuple, which begins with them.

        Refused is a batch with none of them, or with another one that the model can be given.
        """
        names = _names(self.example)
        if not isinstance(batch, Mapping):
            if names:
                raise ValueError(
                    f"a batch is a {type(batch).__name__} of {len(batch)} and the model was "
                    f"recorded with a dict: pass dicts, pairs (dict, target), or a function "
                    f"inputs= that makes the dict of a batch"
                )
            tupled = isinstance(self.example, (tuple, list))
            return tuple(batch[: len(self.example)]) if tupled else batch[0]
        taken = {name: batch[name] for name in names if name in batch}
        if not taken:
            raise ValueError(
                f"a batch has the entries {[*batch]} and the model takes "
                f"{names or 'what is no dict'}: say by inputs= which of the batch's entries these "
                f"are"
            )
        unused = [name for name in batch if name in self.others and batch[name] is not None]
        if unused:
            raise ValueError(
                f"a batch has {unused[0]!r}, which the model's forward takes, and the example of "
                f"pipekit.stages had not, so that the stages would leave it out: give an example "
                f"that has it, or say by inputs={names} that they shall"
            )
        return taken

    def tensors_of(self, taken: Any) -> Tree:
        """Return of what the model takes the entries that hold tensors; the rest must be equal."""
        if isinstance(self.example, Value) or not isinstance(taken, (Mapping, tuple, list)):
            return taken
        kept = {}
        for key, entry, child in _entries(self.example, taken, "the batch"):
            if not holds_value(child):
                _require_same(child, entry, f"the batch[{key!r}]")
            elif entry is None:
                raise ValueError(
                    f"the batch[{key!r}] is None and was a tensor in the example of "
                    f"pipekit.stages: pass a tensor, say a mask of ones, or give an example "
                    f"without it"
                )
            else:
                kept[key] = entry
        return kept if isinstance(taken, Mapping) else tuple(kept.values())


def is_for_the_loss(name: str) -> bool:
    """Return whether batches hold an entry of that name for the loss, whoever computes it."""
    return any(part in name for part in _FOR_THE_LOSS)


def matched(
    template: Template, tree: Any, where: str = "the batch"
) -> Iterator[tuple[int, Tensor]]:
    """Yield the tensors of a batch with their numbers in the example's template."""
    if isinstance(template, Value):
        if not isinstance(tree, Tensor):
            raise ValueError(f"{where} must be a tensor, not {type(tree).__name__}{remedy(tree)}")
        yield template.number, tree
    elif isinstance(template, (dict, tuple, list)):
        for key, entry, child in _entries(template, tree, where):
            yield from matched(child, entry, f"{where}[{key!r}]")
    else:
        _require_same(template, tree, where)


def _entries(template: Any, tree: Any, where: str) -> list[tuple[Any, Any, Template]]:
    """Return (key, entry, template) of a container; entries without tensors may be left out."""
    if isinstance(template, dict):
        needed = {key for key, child in template.items() if holds_value(child)}
        if not isinstance(tree, Mapping) or not needed <= tree.keys() <= template.keys():
            found = f"has {[*tree]}" if isinstance(tree, Mapping) else f"is a {type(tree).__name__}"
            raise ValueError(f"{where} must have the example's entries {[*template]}, and {found}")
        return [(key, tree[key], child) for key, child in template.items() if key in tree]
    every = list(enumerate(template))
    tensors = [(key, child) for key, child in every if holds_value(child)]
    for entries in (every, tensors):
        if isinstance(tree, (tuple, list)) and len(tree) == len(entries):
            return [(key, x, child) for (key, child), x in zip(entries, tree, strict=True)]
    raise ValueError(
        f"{where} must have {len(every)} entries, as the example has (a pair is input and target: "
        f"inputs without a target are (inputs, None))"
    )


def holds_value(template: Template) -> bool:
    """Return whether there is a tensor of the batch's in a template."""
    return any(isinstance(leaf, (Value, NamedWeight)) for leaf in leaves(template))


def _names(example: Template) -> list[Any]:
    return list(example) if isinstance(example, dict) else []


def _require_same(template: Template, tree: Any, where: str) -> None:
    was, found = list(leaves(template)), list(leaves(tree))
    tensor = any(isinstance(leaf, Tensor) for leaf in found)
    pairs = zip(was, found, strict=False)
    same = (one is other or (type(one) is type(other) and one == other) for one, other in pairs)
    if tensor or len(was) != len(found) or not all(same):
        shown = was[0] if len(was) == 1 else was
        raise ValueError(
            f"{where} is {'a tensor' if tensor else repr(tree)} and was {shown!r} in the example "
            f"of pipekit.stages, for which the model was recorded: what is no tensor there stays "
            f"as it is; give an example with a tensor in its place, or one of each kind and "
            f"pipelines of their own"
        )
