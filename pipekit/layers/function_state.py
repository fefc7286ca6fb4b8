"""What a user's function reads that may change: its closure, attributes and global variables."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from pipekit.layers.module_state import TORCHS
from pipekit.layers.python_state import PLAIN, Kept, methods_named, names_in

_DEEP = 2  # objects within objects


def functions_of(function: Any) -> Iterator[FunctionType]:
    """Yield the functions in Python that a callable consists of."""
    if isinstance(function, partial):
        for part in (function.func, *function.args):
            yield from functions_of(part)
    elif isinstance(function, MethodType):
        yield from functions_of(function.__func__)
    elif isinstance(function, FunctionType):
        yield inspect.unwrap(function)
    elif not isinstance(function, type) and callable(function):
        name = "forward" if isinstance(function, nn.Module) else "__call__"
        yield from functions_of(inspect.getattr_static(type(function), name, None))
        for part in getattr(function, "__dict__", {}).values():
            if isinstance(part, (FunctionType, MethodType)):
                yield from functions_of(part)


class FunctionState:
    """What a function reads, as it was last looked at: plain values, tensors and dictionaries.

    Of the objects in its closure, its attributes and its global variables, these are the attributes
    that its code or theirs names.
    """

    def __init__(self, function: object) -> None:
        self._kept: dict[str, tuple[Callable[[], Any], Kept]] = {}
        self._look(function, set(), _DEEP)

    def changed(self) -> list[str]:
        """Return the names of what is not as it was, which is then the known."""
        found = [name for name, (get, kept) in self._kept.items() if kept.differs_from(get())]
        for name in found:
            get, _ = self._kept[name]
            self._kept[name] = get, Kept(get())
        return found

    def _look(self, value: Any, names: set[str], depth: int) -> None:
        owner = value.__self__ if isinstance(value, MethodType) else value
        functions = [f for f in functions_of(value) if not f.__module__.startswith("torch")]
        names = names.union(*map(names_in, functions))
        functions += methods_named(owner, names)
        names = names.union(*map(names_in, functions))
        for function in functions:
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            for name, cell in cells:
                self._keep(name, partial(getattr, cell, "cell_contents", None), names, depth)
            for name in names_in(function) & function.__globals__.keys():
                self._keep(name, partial(function.__globals__.get, name), names, depth)
        own = {*getattr(owner, "__dict__", {})}
        if isinstance(owner, nn.Module):
            own |= {*owner._buffers, *owner._modules}
            names = own - TORCHS if type(owner).__module__.startswith("torch") else names
        for name in names & own:
            self._keep(name, partial(getattr, owner, name, None), names, depth)

    def _keep(self, name: str, get: Callable[[], Any], names: set[str], depth: int) -> None:
        value = get()
        if isinstance(value, (*PLAIN, dict, Tensor)):
            self._kept.setdefault(name, (get, Kept(value)))
        elif depth and not isinstance(value, (type, ModuleType, list, set, tuple)):
            self._look(value, names, depth - 1)
