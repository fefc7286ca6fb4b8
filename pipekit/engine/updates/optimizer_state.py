"""An optimizer's state by the names of its parameters, so that other stages can take it over."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from pipekit.host.user_frames import warn

NamedState = dict[str, dict[str, Any]]
"""For each parameter: ``state``, what the optimizer keeps of it, and ``options``, its group's."""

Groups = Callable[[str, Tensor], Mapping[str, Any]]
"""From a parameter's name in the unsplit model, and the parameter, to its options."""


def original_names(layers: nn.Module) -> dict[Tensor, str]:
    """Return the name of each tensor of a stage in the unsplit model, the first of several."""
    named = layers.state_dict(keep_vars=True)
    return {named[name]: name for name in reversed(named) if isinstance(named[name], Tensor)}


class OrderedGroups:
    """A user's groups, all of them in every stage: a scheduler may have a rate for each."""

    def __init__(self, groups: Groups, model: nn.Module) -> None:
        self._groups, self._options = groups, list[Mapping[str, Any]]()
        names = original_names(model)
        tensors = model.state_dict(keep_vars=True).items()
        self._first = {name: names.get(tensor, name) for name, tensor in tensors}  # of shared ones
        for parameter in model.parameters():
            name = names[parameter]
            if parameter.requires_grad and (given := self(name, parameter)) not in self._options:
                self._options.append(given)

    def __call__(self, name: str, parameter: Tensor) -> Mapping[str, Any]:
        given = self._groups(self._first[name], parameter)
        if not isinstance(given, Mapping):
            raise TypeError(
                f"groups returned a {type(given).__name__} for {name}: return a dict of the "
                f"optimizer's options, e.g. {{'weight_decay': 0.0}}, or {{}} for those of all"
            )
        return dict(given)

    def grouped(self, parameters: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Return parameters in groups of equal options, as torch's optimizers take them."""
        found: list[dict[str, Any]] = [{"params": [], **options} for options in self._options]
        for name, parameter in parameters.items():
            options = self(name, parameter)
            if options not in self._options:  # of one that was frozen before
                self._options.append(options)
                found.append({"params": [], **options})
            found[self._options.index(options)]["params"].append(parameter)
        return found


class OwnGenerators:
    """The random generators that an optimizer keeps in its attributes."""

    def __init__(self, optimizer: Optimizer) -> None:
        kept = pytree.tree_leaves(vars(optimizer))
        self._found = [each for each in kept if isinstance(each, torch.Generator)]

    def state_dict(self) -> list[Tensor]:
        return [each.get_state() for each in self._found]

    def load_state_dict(self, saved: Sequence[Tensor]) -> None:
        for generator, state in zip(self._found, saved, strict=False):
            generator.set_state(state)


class NamedOptimizer:
    """An optimizer whose state is by the names of its parameters."""

    def __init__(self, optimizer: Optimizer, names: Mapping[nn.Parameter, Sequence[str]]) -> None:
        self._optimizer, self._names = optimizer, names

    def state_dict(self) -> NamedState:
        """Return the state of each parameter under its names."""
        packed = self._optimizer.state_dict()
        found: NamedState = {}
        for group, numbered in zip(
            self._optimizer.param_groups, packed["param_groups"], strict=True
        ):
            options = {key: value for key, value in numbered.items() if key != "params"}
            for parameter, number in zip(group["params"], numbered["params"], strict=True):
                state = packed["state"].get(number, {})
                for name in self._names[parameter]:
                    found[name] = {"state": state, "options": options}
        return found

    def warn_of_changes(self, saved: NamedState) -> None:
        """Warn of options with which the optimizer was made, and which a checkpoint replaces."""
        for group in self._optimizer.param_groups:
            for name in self._names[group["params"][0]][:1] if group["params"] else ():
                was = saved.get(name, {}).get("options", {})
                # A scheduler changes the rate and keeps the first one as it was given.
                key = "initial_lr" if "initial_lr" in was else "lr"
                same_kind = key in was and was.keys() == group.keys() - {"params"}
                if same_kind and was[key] != group[key]:
                    warn(
                        f"the optimizer goes on with the options of the checkpoint: "
                        f"{key}={was[key]!r} and not {group[key]!r}; to change them, train without "
                        f"resume() from the checkpoint's weights, or use an lr_scheduler from the "
                        f"start"
                    )

    def load_state_dict(self, saved: NamedState) -> None:
        """Take over the parameters' state, and of a group's first parameter the options.

        One that was frozen has none, and begins anew.
        """
        packed = self._optimizer.state_dict()
        for group, numbered in zip(
            self._optimizer.param_groups, packed["param_groups"], strict=True
        ):
            names = [self._names[parameter][0] for parameter in group["params"]]
            known = [(k, n) for k, n in zip(numbered["params"], names, strict=True) if n in saved]
            for number, name in known:
                entry = saved[name]
                if entry["options"].keys() != numbered.keys() - {"params"}:
                    raise ValueError(
                        f"the saved state of {name!r} is not that of a "
                        f"{type(self._optimizer).__name__} with these options: resume with the "
                        f"optimizer and the lr_scheduler of the saved run"
                    )
                if entry["state"]:
                    packed["state"][number] = entry["state"]
            if known:
                numbered |= saved[known[0][1]]["options"]
        self._optimizer.load_state_dict(packed)
