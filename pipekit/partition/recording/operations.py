"""The functions of torch by name, so that recorded steps can be sent to other processes."""

from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any

import torch
from torch.overrides import resolve_name as name_for_torch

from pipekit.partition.recording.refusal import NotRecordable, caller

_CONVERSIONS = ("array", "bool", "complex", "contains", "float", "index", "int")
READS = frozenset(
    {f"__{name}__" for name in _CONVERSIONS}
    | {"allclose", "equal", "is_nonzero", "item", "numpy", "tolist"}
)
"""Functions that hand the numbers in a tensor to Python."""

LOST = frozenset({"backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"})
"""Methods whose effect on a tensor is not a tensor, and would not be there when stages run."""


@cache
def function(name: str) -> Callable[..., Any]:
    """Return the function of that name, as :func:`name_of` gave it."""
    found: Callable[..., Any] = resolve_name(name)
    return found


def name_of(func: Callable[..., Any]) -> str:
    """Return the name under which a function is found again.

    Raises:
        NotRecordable: there is none, as for a function within a function.
    """
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{func}"
    name: str | None = name_for_torch(func)
    if name is None:
        name = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', func)}"
        # Functions without a name of their own in torch, as those of recurrent layers.
        name = name.replace("torch._VariableFunctionsClass.", "torch._VF.")
    try:
        function(name)
    except (AttributeError, ImportError, ValueError):
        raise NotRecordable(
            f"{name} at {caller()} cannot be found again by name in another process: call it "
            f"within a module, and make that a block by blocks=[...]"
        ) from None
    return name


def own_name(func: Callable[..., Any]) -> str:
    """Return a function's last name: ``add`` of ``torch.Tensor.add``."""
    return str(getattr(func, "__name__", ""))
