"""What goes through the layers of a model that is run, noted by PyTorch's hooks."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor, nn

T = TypeVar("T")


def noted(modules: Iterable[nn.Module], note: Callable[[nn.Module, Tensor, Tensor], T]) -> list[T]:
    """Return a list that grows by what is noted of each forward.

    Copies that an engine makes of a module write into the same list.

    Args:
        modules: layers, or a loss.
        note: of a module, its first input and its output.
    """
    found: list[T] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.append(note(module, inputs[0], output))

    for module in modules:
        module.register_forward_hook(hook)
    return found
