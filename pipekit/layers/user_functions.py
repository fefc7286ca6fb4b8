"""A user's functions and modules: what they read that may change, and copies to be asked."""

import copy
import inspect
import io
import pickle
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType, WrapperDescriptorType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from pipekit.devices import random_states_put_back
from pipekit.layers.edited_tensors import memory_of
from pipekit.layers.python_state import (
    HELD,
    TORCHS,
    Around,
    Kept,
    PythonState,
    Variables,
    global_state,
    methods_named,
    names_in,
)
from pipekit.layers.seeded import Seeded, drawn_since, numbers_so_far

_WITHIN, _MOST = 2, 100  # objects within objects, and of a container
MOST_BYTES = 256_000_000
"""Of tensors that are copied or joined for a question."""


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
        method = inspect.getattr_static(type(function), name, None)
        if not isinstance(method, WrapperDescriptorType):  # of what is written in C
            yield from functions_of(method)
        for part in getattr(function, "__dict__", {}).values():
            if isinstance(part, (FunctionType, MethodType)):
                yield from functions_of(part)


class FunctionState:
    """What a function reads, as it was last looked at: plain values, tensors and containers.

    Of objects in closures, attributes and global variables, what its code or theirs names.
    """

    def __init__(self, function: object) -> None:
        self._kept: dict[str, tuple[Any, str, Kept]] = {}  # by path: the holder, and a name in it
        self._look(function, set(), "", _WITHIN)

    def changed(self) -> dict[str, Any]:
        """Return by its path what is not as it was, which is then the known."""
        found = {}
        for path, (holder, name, kept) in self._kept.items():
            now = holder.get(name)
            if kept.differs_from(now):
                found[path] = now
                self._kept[path] = holder, name, Kept(now)
        return found

    def take(self, changed: Mapping[str, Any]) -> None:
        """Take over what has changed in a copy of the function."""
        for path in changed.keys() & self._kept.keys():
            holder, name, _ = self._kept[path]
            holder[name] = changed[path]

    def _look(self, value: Any, names: set[str], path: str, depth: int) -> None:
        owner = value.__self__ if isinstance(value, MethodType) else value
        functions = [f for f in functions_of(value) if not f.__module__.startswith("torch")]
        names = names.union(*map(names_in, functions))
        functions += methods_named(owner, names)
        names = names.union(*map(names_in, functions))
        for function in functions:
            around = Around(function)
            for name in around:
                self._keep(around, name, names, path, depth)
            for name in names_in(function) & function.__globals__.keys():
                self._keep(function.__globals__, name, names, path, depth)
        own = getattr(owner, "__dict__", {})
        holders = [own[held] for held in ("_buffers", "_modules") if held in own] + [own]
        if isinstance(owner, nn.Module) and type(owner).__module__.startswith("torch"):
            names = set[str]().union(*holders) - TORCHS
        for holder in holders:
            # An attribute may be new in a later call.
            for name in names if holder is own else names & holder.keys():
                self._keep(holder, name, names, path, depth)

    def _keep(self, holder: Any, name: str, names: set[str], path: str, depth: int) -> None:
        value, path = holder.get(name), f"{path}.{name}".lstrip(".")
        if isinstance(value, HELD):
            self._kept.setdefault(path, (holder, name, Kept(value)))
        for key, each in _functions_in(value) if depth else ():
            self._look(each, names, path + key, depth - 1)


def _functions_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object that may read something or, by key, those in a container: losses, say."""
    if isinstance(value, (list, tuple, dict)):
        several = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in islice(several, _MOST):
            if callable(each) and not isinstance(each, type):
                yield f".{key}", each
    elif not isinstance(value, (*HELD, type, ModuleType)):
        yield "", value


class FunctionCopies:
    """Copies of a function as it is now: its closure, its attributes, what it calls in a script.

    Modules and tensors of the models stay themselves.  Of an imported file, global variables are
    put back.  An Exception of whatever kind refuses one that cannot be copied, or is too large.
    """

    def __init__(self, function: Any, models: Sequence[nn.Module], device: torch.device) -> None:
        self._function, self._device = function, device
        self.drew = False  # whether any call has drawn random numbers
        self.drew_shared = False  # and has done so from a generator that others have, too
        self.shared: set[str] = set()  # libraries from whose generators for all threads it has
        self._objects: list[Any] = []
        file = io.BytesIO()
        _FunctionPickler(file, self._objects, models).dump(function)
        self._bytes = file.getvalue()

    def __call__(self, *args: Any) -> Any:
        """Call a fresh copy; random numbers, and global variables, are then as they were."""
        functions, drawing = functions_of(self._function), Seeded(0, self._device)
        variables = PythonState(Variables("", None, *global_state(each)) for each in functions)
        before, numbers, arrays = numbers_so_far(), random.getstate(), np.random.get_state()
        try:
            with (
                warnings.catch_warnings(action="ignore"),  # the real call will say it
                random_states_put_back(self._device),
                drawing,
            ):
                value = _Unpickler(io.BytesIO(self._bytes), self._objects).load()(*args)
            self.shared |= drawn_since(before)
            self.drew |= drawing.drew or bool(self.shared)
            self.drew_shared |= drawing.drew_shared or bool(self.shared)
            return value
        finally:
            random.setstate(numbers)
            np.random.set_state(arrays)
            variables.put_back()


class _FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO, objects: list[Any], models: Sequence[nn.Module]) -> None:
        super().__init__(file)
        self._objects, self._bytes = objects, 0
        self._modules = {module for model in models for module in model.modules()}
        tensors = (t for model in models for t in (*model.parameters(), *model.buffers()))
        self._memory = {*map(memory_of, tensors)} - {0}

    def persistent_id(self, value: Any) -> tuple[int, bool] | None:
        """Return the place of what is not pickled, and whether it is copied."""
        if isinstance(value, (type, ModuleType)) or hasattr(type(value), "stays_here"):
            is_copied = False
        elif isinstance(value, Tensor):
            is_copied = memory_of(value) not in self._memory
            self._bytes += is_copied * value.nbytes
            if self._bytes > MOST_BYTES:
                raise MemoryError("it has too many tensors")
        elif isinstance(value, nn.Module) and value in self._modules:
            is_copied = False
        else:
            return None
        self._objects.append(value)
        return len(self._objects) - 1, is_copied


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, objects: list[Any]) -> None:
        super().__init__(file)
        self._objects, self._copies = objects, dict[int, Any]()

    def persistent_load(self, place: tuple[int, bool]) -> Any:
        value = self._objects[place[0]]
        if not place[1]:
            return value
        if value.is_leaf:
            return copy.deepcopy(value, self._copies)
        return self._copies.setdefault(id(value), value.detach().clone())
