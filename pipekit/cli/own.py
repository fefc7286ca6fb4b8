"""What the user wrote, named as ``package.module:name`` on the command line."""

import sys
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipekit.choices import require_choice

if TYPE_CHECKING:
    from torch import nn

    from pipekit.trees import Tree


def require_known(name: str, known: str) -> None:
    """Check the name of a network, before torch is loaded.

    Args:
        name: what the user typed.
        known: the names of networks that come with pipekit, with commas.

    Raises:
        ValueError: it is none of them, and no ``package.module:name`` of a module that is there.
    """
    if ":" in name:
        require_module(name)
    else:
        require_choice("model", name, [*known.split(", "), "package.module:factory"])


def require_module(reference: str) -> None:
    """Raise ValueError unless ``package.module:name`` names a module that can be found."""
    module, _, name = reference.partition(":")
    if not name or not module:
        raise ValueError(
            f"{reference!r} is no package.module:name: of a function make() in the file nets.py "
            f"here, it is nets:make"
        )
    here = str(Path.cwd())
    if here not in sys.path:  # as with python -m; a command that was installed has it not
        sys.path.insert(0, here)
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:  # nor its package
        there = False
    if not there:
        raise ValueError(f"{reference!r}: there is no module {module!r}, installed or in {here}")


def load(reference: str) -> Any:
    """Return what ``package.module:name`` names.

    Raises:
        ValueError: there is no such module or name; the message says which there are.
    """
    require_module(reference)
    module, _, path = reference.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        if not hasattr(found, name):
            there = ", ".join(n for n in vars(found) if not n.startswith("_"))
            raise ValueError(f"{reference!r}: {module} has no {name!r}, only {there}")
        found = getattr(found, name)
    return found


@dataclass(frozen=True)
class OwnModel:
    """A network that the user wrote, and the data that it learns.

    Attributes:
        model: ``package.module:factory``, a function that returns a module, or (module, example).
        data: ``package.module:batches``, as :func:`own_batches` takes it, or None.
    """

    model: str
    data: str | None = None

    def build(self) -> "nn.Sequential":
        """Return the network as layers, recorded unless it is an ``nn.Sequential``."""
        from torch import nn

        import pipekit

        module = self._made[0]
        return module if isinstance(module, nn.Sequential) else pipekit.stages(module, self.example)

    @cached_property
    def example(self) -> "Tree":
        """A batch of what the network takes: the factory's, or else the data's first.

        Raises:
            ValueError: there is neither.
        """
        example = self._made[1]
        if example is None and self.data is not None:
            ((example, _),) = own_batches(self.data, 1)
        if example is None:
            raise ValueError(
                f"there is no example of what {self.model} takes: let it return (model, example), "
                f"a batch of two rows or more, or name --data"
            )
        return example

    @cached_property
    def _made(self) -> tuple["nn.Module", Any]:
        """The module, and the example or None."""
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


def own_batches(reference: str, steps: int | None = None) -> list[tuple[Any, Any]]:
    """Return batches that the user gives.

    Args:
        reference: of an iterable of pairs (input, target), or of a function that returns one.
        steps: how many are read; None: all that there are.

    Raises:
        ValueError: there are none, or one is no pair.
    """
    found = load(reference)
    found = list(islice(found() if callable(found) else found, steps))
    if not found or not all(isinstance(each, (tuple, list)) and len(each) == 2 for each in found):
        raise ValueError(f"{reference} must give pairs (input, target), one at least")
    return [(each[0], each[1]) for each in found]
