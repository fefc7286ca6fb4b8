"""Copies of layers, with and without tensors in common with them."""

import copy
from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor, nn

from pipekit.layers.python_state import TORCHS

Module = TypeVar("Module", bound=nn.Module)


def copied(module: Module) -> Module:
    """Return a copy with tensors of its own.

    Raises:
        TypeError: something in it cannot be copied; the message names the attribute.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:  # of whatever the user's modules keep
        said = str(error).strip().partition("\n")[0]
        raise TypeError(
            f"training needs a copy of the model, and {_uncopied(module)} cannot be copied "
            f"({said}): give its module a __deepcopy__, or make it when it is first used"
        ) from error


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
    """Return a copy of a module with the same buffers, whoever of the two may replace them.

    Args:
        module: any.
        shared: what else they have in common; of other parameters the copy has its own.
    """
    common = {id(tensor): tensor for tensor in (*module.buffers(), *shared)}
    copied = copy.deepcopy(module, common)
    for one, original in zip(copied.modules(), module.modules(), strict=True):
        one._buffers = original._buffers
    return copied
