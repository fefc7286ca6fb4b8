"""A network and its data that the user wrote, as the command line names them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
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
            example = self._taken if isinstance(self._first, Mapping) else self._first[0]
        if example is None:
            raise ValueError(
                f"there is no example of what {self.model} takes: let it return (model, example), "
                f"a batch of two rows or more, or name --data"
            )
        return example

    def loss(self, given: str | None) -> "Callable[[Any, Any], Tensor]":
        """Return the loss that is given by name, or else the default one of the batches' target."""
        from pipekit.losses.losses import default_loss, default_loss_of_entry

        if given is not None:
            return load(given)  # type: ignore[no-any-return]
        if not isinstance(self._first, Mapping):
            return default_loss
        return partial(default_loss_of_entry, self._target)

    def judged(self, given: str | None) -> tuple["Tree", "Tree", "Callable[[Any, Any], Tensor]"]:
        """Return the inputs in the data's first batch, its other tensors, and a loss."""
        from pipekit.engine.batches import parted

        loss = self.loss(given)
        if not isinstance(self._first, Mapping):
            return self._first[0], self._first[1], loss
        tensors, plain = parted(dict(self._first))
        judge = (lambda output, batch: loss(output, plain.joined(batch))) if plain else loss
        return self._taken, tensors, judge

    @property
    def _taken(self) -> dict[str, Any]:
        """The entries of the data's first batch, a dict, that the network's forward takes."""
        from torch import nn

        from pipekit.partition.recording.model_input import is_for_the_loss

        module, example = self._made
        if isinstance(module, nn.Sequential):
            raise ValueError(
                f"{self.model} is an nn.Sequential, which takes no arguments by name: let "
                f"{self.data} give pairs (input, target) in place of dicts"
            )
        if example is not None:
            names = [*example] if isinstance(example, Mapping) else []
        else:
            arguments = inspect.signature(module.forward).parameters
            names = [name for name in arguments if not is_for_the_loss(name)]
        taken = {name: self._first[name] for name in names if name in self._first}
        if not taken:
            raise ValueError(
                f"{self.data} gives dicts with {[*self._first]}, and the forward of {self.model} "
                f"takes {names or 'no dict'}: name the entries as its arguments, or give pairs "
                f"(input, target)"
            )
        return taken

    @property
    def _target(self) -> str:
        """The entry of the data's batches, which are dicts, that the default loss compares with."""
        from torch import Tensor

        from pipekit.partition.recording.model_input import is_for_the_loss

        taken = self._taken
        tensors = [str(name) for name, entry in self._first.items() if isinstance(entry, Tensor)]
        left = [name for name in tensors if name not in taken]
        named = [name for name in left if is_for_the_loss(name)]
        own = inspect.signature(self._made[0].forward).parameters
        remedy = "name --loss package.module:function, a loss(output, batch)"
        for name in left:
            if name in own:
                raise ValueError(
                    f"{self.model} has a loss of its own for {name!r}, which no stage can compute "
                    f"and which may differ from the usual one (by a shift, say): {remedy}"
                )
        candidates = left if len(left) == 1 else named
        if len(candidates) != 1:
            raise ValueError(
                f"nothing says which entry of {self.data} {self.model} learns: of "
                f"{[*self._first]} it takes {[*taken]}; {remedy}"
            )
        return candidates[0]

    @cached_property
    def _first(self) -> Any:
        assert self.data is not None
        return own_batches(self.data, 1)[0]

    @cached_property
    def _made(self) -> tuple["nn.Module", Any]:
        from torch import nn

        found = load(self.model)
        if not isinstance(found, nn.Module) and callable(found):
            found = called(self.model, found)
        module, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"{self.model} must return a torch.nn.Module, or one and an example batch, not "
                f"{type(module).__name__}"
            )
        return module, example


def own_batches(reference: str, steps: int | None = None) -> list[Any]:
    """Return the first ``steps`` of the batches that a user's reference names, or all."""
    found = load(reference)
    found = list(islice(called(reference, found) if callable(found) else found, steps))
    pairs = (isinstance(each, (tuple, list)) and len(each) == 2 for each in found)
    dicts = (isinstance(each, Mapping) for each in found)
    if not found or not (all(pairs) or all(dicts)):
        raise ValueError(
            f"{reference} must give pairs (input, target), one at least, or dicts of the model's "
            f"arguments and what the loss takes"
        )
    return found


def called(reference: str, function: Any, **given: Any) -> Any:
    """Return the result of a user's function for what is ``given`` in this order."""
    form = f"with ({', '.join(given)})" if given else "without arguments"
    if not callable(function):
        raise TypeError(f"{reference} is not a function: name one that is called {form}")
    arguments = inspect.signature(function)
    try:
        arguments.bind(*given.values())
    except TypeError as error:
        module, _, name = reference.partition(":")
        raise TypeError(
            f"{reference} is called {form}, and takes {arguments} ({error}): write a "
            f"function in {module} that calls it with them, or functools.partial({name}, ...), and "
            f"name that"
        ) from None
    return function(*given.values())
