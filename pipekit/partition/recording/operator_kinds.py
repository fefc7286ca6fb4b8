"""What kinds of operators run: those that draw random numbers, and those of unforeseeable shape."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipekit.devices import random_states


class OperatorKinds(TorchDispatchMode):
    """Notes, while it is entered, what kinds of operators run; whoever asks resets the notes.

    Args:
        device: where the model computes.

    Attributes:
        drew: whether a generator's state has changed.  An operator's tag alone would not say so:
            attention has it also where nothing is dropped.
        shape_from_data: whether the shape of an operator's output depended on numbers in its input.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._states = random_states(device)
        self.reset()

    def reset(self) -> None:
        """Forget what ran."""
        self.drew = self.shape_from_data = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator."""
        tags = func.tags  # type: ignore[attr-defined]
        if torch.Tag.dynamic_output_shape in tags:
            self.shape_from_data |= not _indexes_by_integers(func, args)
        if self.drew or torch.Tag.nondeterministic_seeded not in tags:
            return func(*args, **(kwargs or {}))
        before = [states.get_state() for states in self._states]
        result = func(*args, **(kwargs or {}))
        after = [states.get_state() for states in self._states]
        self.drew = not all(map(torch.equal, before, after))
        return result


def _indexes_by_integers(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether an operator takes as many elements as its indices have, unlike booleans."""
    return func is torch.ops.aten.index.Tensor and not any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
