"""The functions of torch: by name, so that processes can send them, and what running one does."""

from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name as name_for_torch

from pipekit.devices import random_states
from pipekit.layers.edited_tensors import WrittenTensors
from pipekit.partition.recording.refusal import NotRecordable, caller
from pipekit.trees import tensors_in

_CONVERSIONS = ("array", "bool", "complex", "contains", "float", "index", "int")
READS = frozenset(
    {f"__{name}__" for name in _CONVERSIONS}
    | {"allclose", "equal", "is_nonzero", "item", "numpy", "tolist"}
)
"""Functions that hand the numbers in a tensor to Python."""

BEYOND_TENSORS = frozenset(
    {"backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"}
)
"""Methods whose effect on a tensor is not a tensor, and would not be there when stages run."""


@cache
def function(name: str) -> Callable[..., Any]:
    """Return the function of that name, as :func:`name_of` gave it, maybe in another process."""
    found: Callable[..., Any] = resolve_name(name)
    return found


def name_of(func: Callable[..., Any]) -> str:
    """Return the name under which a function is found again; refuse one within a function."""
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


def last_name(func: Callable[..., Any]) -> str:
    """Return a function's last name: ``add`` of ``torch.Tensor.add``."""
    return str(getattr(func, "__name__", ""))


class RecordedOperators(WrittenTensors):
    """Notes what kinds of operators have run since the last reset, and what they have edited.

    ``drew``: a generator's state has changed; attention has the tag also where nothing is dropped.
    ``shape_from_data``: the shape of an operator's output depended on numbers in its input.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(model)
        self._states = random_states(device)
        self.reset()

    def reset(self) -> None:
        self.drew = self.shape_from_data = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.look_at(func, tensors_in((args, kwargs)))
        tags = func.tags  # type: ignore[attr-defined]
        if torch.Tag.dynamic_output_shape in tags:
            # Not so, if it is an index of whole numbers.
            self.shape_from_data |= func is not torch.ops.aten.index.Tensor or any(
                isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
                for index in args[1]
            )
        if self.drew or torch.Tag.nondeterministic_seeded not in tags:
            return func(*args, **(kwargs or {}))
        before = [states.get_state() for states in self._states]
        result = func(*args, **(kwargs or {}))
        after = [states.get_state() for states in self._states]
        self.drew = not all(map(torch.equal, before, after))
        return result
