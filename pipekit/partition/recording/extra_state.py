"""What modules keep beside tensors and give to ``state_dict()``: torch's ``get_extra_state``."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pipekit.partition.recording.stage import RecordedStage


def owners(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules within one that have extra state, by its names in ``state_dict()``."""
    if isinstance(module, RecordedStage):  # has the unsplit model's names wherever it stands
        prefix = ""
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        yield f"{prefix}_extra_state", module
    for name, child in module._modules.items():
        if child is not None:
            yield from owners(child, f"{prefix}{name}.")


def extra_states(module: nn.Module) -> dict[str, Any]:
    """Return copies of all extra states, by name, with their tensors on the CPU."""
    return {name: copied_entry(owner.get_extra_state()) for name, owner in owners(module)}


def set_extra_states(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Give the modules within one copies of their extra states, as far as ``state`` has them."""
    for name, owner in owners(module):
        if name in state:
            owner.set_extra_state(copy.deepcopy(state[name]))


def require_taken(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise ValueError if a module gives an extra state that is in ``state``, and takes none."""
    for name, owner in owners(module):
        if name in state and not _takes(owner):
            raise ValueError(
                f"{type(owner).__name__} gives {name!r} by get_extra_state(), and cannot take it: "
                f"write its set_extra_state(), or leave the entry out and pass strict=False"
            )


def copied_entry(value: Any) -> Any:
    """Return a copy of an entry of a ``state_dict()``, with its tensors on the CPU."""
    return pytree.tree_map(_copied_leaf, value)


def _takes(owner: nn.Module) -> bool:
    return type(owner).set_extra_state is not nn.Module.set_extra_state


def _copied_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().to("cpu", copy=True)
    return copy.deepcopy(leaf)
