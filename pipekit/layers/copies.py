"""Copies of modules."""

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from pipekit.layers.module_state import TORCHS, generators

Module = TypeVar("Module", bound=nn.Module)


def copied(module: Module) -> Module:
    """Return a copy with tensors of its own.

    Raises:
        TypeError: something in it cannot be copied; the message names the attribute.
        ValueError: the copies would be tensors of inference mode.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "nothing can be trained that is made within torch.inference_mode(): make the pipeline "
            "outside of it"
        )
    try:
        return copy.deepcopy(module)
    except Exception as error:  # of whatever the user's modules keep
        _refuse_computed(module)
        said = str(error).strip().partition("\n")[0]
        raise TypeError(
            f"training needs a copy of the model, and {_uncopied(module)} cannot be copied "
            f"({said}): give its module a __deepcopy__, or make it when it is first used"
        ) from error


_PARAMETRIZED = {
    "weight_norm": "use torch.nn.utils.parametrizations.weight_norm, which does the same",
    "spectral_norm": "use torch.nn.utils.parametrizations.spectral_norm, which does the same",
    "prune": "register the mask by torch.nn.utils.parametrize, or call prune.remove(layer, name)",
}
"""What to do instead of older functions of torch's that compute a weight before each forward."""


def _refuse_computed(module: nn.Module) -> None:
    """Raise TypeError if a hook of torch's own makes a weight that no copy can have."""
    for name, part in module.named_modules():
        for hook in part._forward_pre_hooks.values():
            kind = type(hook).__module__.removeprefix("torch.nn.utils.")
            if kind in _PARAMETRIZED:
                raise TypeError(
                    f"training needs a copy of the model, and {name or 'it'} has a weight that "
                    f"torch.nn.utils.{kind} computes, which cannot be copied: "
                    f"{_PARAMETRIZED[kind]}"
                ) from None


def _uncopied(module: nn.Module) -> str:
    """Return the name of the first attribute that cannot be copied."""
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key in TORCHS:
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f"{name}.{key}".lstrip(".")
    return "it"


def twin(module: Module, shared: Iterable[Tensor]) -> Module:
    """Return a copy of a module with the same buffers and generators, whoever may replace them.

    They have ``shared`` tensors in common; of other parameters the copy has its own.
    """
    common = {id(each): each for each in (*module.buffers(), *generators(module), *shared)}
    copied = copy.deepcopy(module, common)
    for one, original in zip(copied.modules(), module.modules(), strict=True):
        one._buffers = original._buffers
    return copied
