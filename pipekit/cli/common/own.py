"""A network and its data that the user wrote, as the command line names them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import pipekit as pk
from pipekit.choices import require_choice
from pipekit.references import load, require_module

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pipekit.trees import Tree


def require_known(name: str, known: str) -> None:
    """Refuse a network that is neither ``known`` nor a user's, before torch is loaded."""
    if ":" in name:
        require_module(name)
    else:
        require_choice("model", name, [*known.split(", "), "package.module:factory"])


@dataclass(frozen=True)
class OwnModel:
    """A network that the user wrote, and the data that it learns."""

    model: str  # package.module:factory, which returns a module, or (module, example)
    data: str | None = None  # package.module:batches, as own_batches() takes it

    def build(self) -> "nn.Sequential":
        """Return the network as layers, recorded unless it is an ``nn.Sequential``."""
        from torch import nn

        module = self._made[0]
        return module if isinstance(module, nn.Sequential) else pk.stages(module, self.example)

    @cached_property
    def example(self) -> "Tree":
        """A batch of what the network takes: the factory's, or else of the data's first."""
        example = self._made[1]
        if example is None and self.data is not None:
            example = self.first[0]
        if example is None:
            raise ValueError(
                f"there is no example of what {self.model} takes: let it return (model, example), "
                f"a batch of two rows or more, or name --data"
            )
        return example

    @cached_property
    def first(self) -> Any:
        """The input and the target of the data's first batch."""
        assert self.data is not None
        return own_batches(self.data, 1)[0]

    @cached_property
    def _made(self) -> tuple["nn.Module", Any]:
        from torch import nn

        found = load(self.model)
        if not isinstance(found, nn.Module) and callable(found):
            found = found()
        module, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"{self.model} must return a torch.nn.Module, or one and an example batch, not "
                f"{type(module).__name__}"
            )
        return module, example


def own_loss(reference: str | None) -> "Callable[[Any, Any], Tensor]":
    """Return the loss that a user's reference names; None: the default one."""
    from pipekit.losses.losses import default_loss

    return default_loss if reference is None else load(reference)


def own_batches(reference: str, steps: int | None = None) -> list[Any]:
    """Return the first ``steps`` of the batches that a user's reference names, or all."""
    found = load(reference)
    found = list(islice(found() if callable(found) else found, steps))
    if not found or not all(isinstance(each, (tuple, list)) and len(each) == 2 for each in found):
        raise ValueError(
            f"{reference} must give pairs (input, target), one at least; an input may be a dict of "
            f"the model's arguments"
        )
    return found
