"""An optimizer's state by the names of its parameters, so that other stages can take it over."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

NamedState = dict[str, dict[str, Any]]
"""For each parameter: ``state``, what the optimizer keeps of it, and ``options``, its group's."""


def by_name(optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> NamedState:
    """Return the state of each parameter under its name."""
    packed = optimizer.state_dict()
    found: NamedState = {}
    for group, numbered in zip(optimizer.param_groups, packed["param_groups"], strict=True):
        options = {key: value for key, value in numbered.items() if key != "params"}
        for parameter, number in zip(group["params"], numbered["params"], strict=True):
            state = packed["state"].get(number, {})
            found[names[parameter]] = {"state": state, "options": options}
    return found


def load_by_name(
    optimizer: Optimizer, names: Mapping[nn.Parameter, str], saved: NamedState
) -> None:
    """Give an optimizer the state that :func:`by_name` returned, of its parameters and maybe more.

    A group takes the options of its first parameter.

    Raises:
        ValueError: the state is another kind of optimizer's, or lacks a parameter.
    """
    packed = optimizer.state_dict()
    for group, numbered in zip(optimizer.param_groups, packed["param_groups"], strict=True):
        entries = [saved.get(names[parameter]) for parameter in group["params"]]
        for number, parameter, entry in zip(
            numbered["params"], group["params"], entries, strict=True
        ):
            if entry is None or entry["options"].keys() != numbered.keys() - {"params"}:
                raise ValueError(
                    f"the saved state of {names[parameter]!r} is not that of a "
                    f"{type(optimizer).__name__} with these options: resume with the optimizer and "
                    f"the lr_scheduler of the saved run"
                )
            if entry["state"]:
                packed["state"][number] = entry["state"]
        if entries and entries[0]:
            numbered |= entries[0]["options"]
    optimizer.load_state_dict(packed)
