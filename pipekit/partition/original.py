"""Whether the copy of a model that is trained still computes with the original's tensors.

Copies of modules hold the very functions of the originals.  A lambda, a replaced forward or a hook
may so lead back to a module of the original, whose weights no stage trains.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from pipekit.layers.buffers import buffers_untouched


@contextmanager
def original_unused(original: nn.Module) -> Iterator[None]:
    """Refuse forwards of a copy that read a trained weight of the original, or edit its buffers.

    Frozen weights and buffers that stay as they are may be read: they are equal in both.

    Raises:
        ValueError: one does; the message names the tensor.
    """
    with buffers_untouched(original), _Watch(original):
        yield
        for name, buffer in original.named_buffers():
            if buffer._version:  # it is a new copy, for as long as this lasts
                raise ValueError(_refusal("edits the buffer", name))


class _Watch(TorchDispatchMode):
    """Looks for the trained weights of a model among the arguments of all operators."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {p: name for name, p in original.named_parameters() if p.requires_grad}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator."""
        for argument in tree_iter((args, kwargs)):
            if isinstance(argument, nn.Parameter) and argument in self._names:
                raise ValueError(_refusal("reads the weight", self._names[argument]))
        return func(*args, **(kwargs or {}))


def _refusal(what: str, name: str) -> str:
    return (
        f"the pipeline trains a copy of the model, in which something still {what} {name!r} of the "
        f"original, which stays as it is: a lambda, a replaced forward or a hook that holds a "
        f"module of the model. Make it a method of the module, which calls self.<name>(...); what "
        f"is not to be trained needs .requires_grad_(False)"
    )
