"""State that modules keep in Python (counters, flags, modes): found, compared and put back."""

import copy
import inspect
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, filterfalse
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import tree_leaves

TORCHS = frozenset(vars(nn.Module()))
"""What torch keeps in every module for itself: tensors, children, hooks, the mode."""


PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set, deque)
HELD = (*PLAIN, *_CONTAINERS, Tensor)
"""What :class:`Kept` knows to compare."""
_SHARED = (type, FunctionType, nn.Module, Tensor)  # what looks into attributes leaves out
_HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
_SET_BY_TRAIN = {"training", "_parameters", "_buffers", "_modules"}
_DEEP, _LONG = 3, 1_000  # further in, and in longer ones, lie data and no state


def module_names(model: nn.Module) -> dict[nn.Module, str]:
    """Return what messages call each module of a model, itself by its class."""
    return {each: name or type(model).__name__ for name, each in model.named_modules()}


def is_pure(model: nn.Module) -> bool:
    """Return whether it is known that forwards read input and weights alone, and leave nothing.

    So it is with PyTorch's own layers without buffers, hooks, edits in place and user's functions.
    """
    for module in model.modules():
        held = vars(module)
        is_torchs = type(module).__module__.startswith("torch.nn.modules.")
        if not is_torchs or "forward" in held or held.get("inplace"):
            return False
        hooked = any(held[name] for name in TORCHS if name.endswith("hooks"))
        if hooked or held.get("max_norm") is not None:
            return False
        state = [held["_buffers"], *(held[name] for name in held.keys() - TORCHS)]
        if not all(isinstance(each, PLAIN) for each in tree_leaves(state)):
            return False
    return not _has_any_global_hook()


class Change(NamedTuple):
    """A variable that has another value than before.

    The key of what an object in an attribute holds is a path, ``config.scale`` say.
    """

    owner: str  # the name of the module that has it, or whose forward names it in its file
    key: str
    is_new: bool  # whether there was none before
    value: Any
    module: nn.Module | None
    by_hook: bool  # whether the function of a hook names it, which all copies of the module call

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.key}".lstrip(".")

    @property
    def is_read(self) -> bool:
        """Whether the forward, or a method of the module that it names, may read it."""
        methods = methods_named(self.module, ["forward"])
        return {*self.key.split(".")} <= set[str]().union(*map(names_in, methods))

    @property
    def is_mode(self) -> bool:
        """Whether the module's own ``train()`` may set it."""
        return any(self.key in names_in(each) for each in methods_named(self.module, ["train"]))

    @property
    def can_be_taken(self) -> bool:
        """Whether a copy of the module can have it: flags may say what was done to weights."""
        return isinstance(self.value, float) and "." not in self.key


class Variables(NamedTuple):
    """Those of a module, of an object that it has in an attribute, or that its functions name.

    They are all but those ``skipped``, or those that are ``named``.
    """

    owner: str  # the module's name
    module: nn.Module | None
    held: Any  # by name
    named: Sequence[str] | None = None
    skipped: Collection[str] = TORCHS
    within: str = ""  # what comes before their names
    by_hook: bool = False

    def names(self) -> Sequence[str]:
        if self.named is not None:
            return self.named
        return [*filterfalse(self.skipped.__contains__, self.held)]


class PythonState:
    """Some variables as they are now: plain values and tensors, also in lists, dicts, sets and
    deques, but not in other objects.
    """

    def __init__(self, variables: Iterable[Variables]) -> None:
        self._before = [(each, {n: Kept(each.held[n]) for n in each.names()}) for each in variables]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        modules: Iterable[nn.Module] | None = None,
        torchs: bool = False,
        hooks: bool = False,
    ) -> Self:
        """Return what modules of a model, some or all, keep in Python.

        These are their attributes and the variables that their forwards name, with ``hooks`` also
        what their hooks name or belong to, with ``torchs`` also their modes, the tensors and
        modules that they have, and what is in buffers.
        """
        names = module_names(model)
        skipped = TORCHS - _SET_BY_TRAIN if torchs else TORCHS
        kinds, found = _HOOKS if hooks else (), []
        modules = [*names] if modules is None else [*modules]
        for module in modules:
            # Looked up without asking the class: a compiled script's answers by raising.
            forward = inspect.getattr_static(type(module), "forward")
            found.append(Variables(names[module], module, vars(module), skipped=skipped))
            found += _named_by(forward, names[module], module)
            for hook in chain.from_iterable(vars(module)[kind].values() for kind in kinds):
                within = getattr(hook, "__qualname__", type(hook).__name__).rpartition(">.")[2]
                found += _named_by(hook, names[module], module, f"{within}.")
        return cls(found)

    @classmethod
    def of_attributes(cls, named: Iterable[tuple[str, nn.Module]]) -> Self:
        """Return the attributes of modules, and those of objects in them."""
        found = []
        for name, module in named:
            found.append(Variables(name, module, vars(module)))
            for key, value in vars(module).items():
                held = getattr(value, "__dict__", None)
                if key not in TORCHS and type(held) is dict and not isinstance(value, _SHARED):
                    found.append(Variables(name, module, held, within=f"{key}."))
        return cls(found)

    def changes(self, known: bool = False) -> list[Change]:
        """Return what is not as it was; with ``known`` it counts as it is from then on."""
        found = []
        for each, before in self._before:
            for name in each.names():
                now, is_new = each.held[name], name not in before
                if is_new or before[name].differs_from(now):
                    key = each.within + name
                    found.append(Change(each.owner, key, is_new, now, each.module, each.by_hook))
                    if known:
                        before[name] = Kept(now)
        return found

    def put_back(self) -> None:
        for each, before in self._before:
            for name in each.names():
                if name not in before:
                    del each.held[name]
            for name, kept in before.items():
                each.held[name] = kept.put_back()


class Kept:
    """A value as it was, with the containers and tensors in it, which somebody may edit."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._parts = [*_parts(value)]

    def differs_from(self, now: Any) -> bool:
        """Return whether it is another value now, or has other contents."""
        return not _same(self._value, now) or any(_is_edited(*part) for part in self._parts)

    def put_back(self) -> Any:
        """Return the value, with the contents that it had."""
        for number, (part, copied, version) in enumerate(self._parts):
            if not _is_edited(part, copied, version):
                continue
            if isinstance(part, Tensor):
                with torch.no_grad():
                    part.copy_(copied)
                self._parts[number] = part, copied, part._version
            else:
                part.clear()
                (part.extend if isinstance(part, (list, deque)) else part.update)(copied)
        return self._value


def _parts(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any, int]]:
    """Yield what can be edited in a value, this first, with a copy and a tensor's version."""
    if type(value) is Tensor and not value.is_inference():
        yield value, value.detach().clone(), value._version
    elif isinstance(value, _CONTAINERS):
        yield value, copy.copy(value), 0
        if depth < _DEEP and len(value) <= _LONG:
            for each in value.values() if isinstance(value, dict) else value:
                yield from _parts(each, depth + 1)


def _is_edited(part: Any, copied: Any, version: int) -> bool:
    if isinstance(part, Tensor):
        return part._version != version
    if isinstance(part, set):
        return bool(part != copied)
    if isinstance(part, dict):
        part, copied = part.items(), copied.items()
    return len(part) != len(copied) or not all(map(_same, copied, part))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, PLAIN) and one == other


def _named_by(
    function: Any, owner: str, module: nn.Module, within: str = ""
) -> Iterator[Variables]:
    """Yield what a function names in its file and around it, and the object that it belongs to."""
    bound = getattr(function, "__self__", function)
    function = getattr(function, "__func__", function)
    if not isinstance(bound, _SHARED) and hasattr(bound, "__dict__"):
        yield Variables(owner, module, vars(bound), within=within)
    how: Any = {"within": within, "by_hook": bool(within)}
    yield Variables(owner, module, *global_state(function), **how)
    if isinstance(function, FunctionType):
        around = Around(function)
        state = [name for name in around if isinstance(around[name], PLAIN + _CONTAINERS)]
        yield Variables(owner, module, around, state, **how)


class Around:
    """The variables around a function, by name as in a dict: those of its cells that are filled."""

    def __init__(self, function: FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells = {name: cell for name, cell in cells if cell != CellType()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __getitem__(self, name: str) -> Any:
        return self._cells[name].cell_contents

    def get(self, name: str) -> Any:
        return self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value


def global_state(function: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the variables of the file of a function, and the names of those that may be state."""
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return {}, []
    known = function.__globals__
    named = (name for name in names_in(function) if name in known)
    return known, sorted(n for n in named if isinstance(known[n], PLAIN + _CONTAINERS))


def names_in(function: FunctionType) -> set[str]:
    """Return the names of variables and attributes in the code of a function."""
    codes, found = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        found.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def set_attributes(model: nn.Module, changes: Iterable[Change]) -> None:
    """Set attributes of the modules with the owners' names, where a model has such."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for each in changes:
        if each.owner in modules:
            modules[each.owner].__dict__[each.key] = each.value


def methods_named(owner: object, names: Iterable[str]) -> list[FunctionType]:
    """Return a user's methods and properties with these names, and those that they name."""
    found = (value for _, _, value in attributes_named(type(owner), names))
    functions = (value for value in found if isinstance(value, FunctionType))
    return [each for each in functions if not each.__module__.startswith("torch")]


def attributes_named(kind: type, names: Iterable[str]) -> Iterator[tuple[type, str, Any]]:
    """Yield a class's attributes with these names, and those that its methods among them name.

    Each comes with the class that has it, this one or a base, and its name; a property is its
    function.  Those of any object, or of any module, are left out.
    """
    left, seen = [*names], set[str]()
    while left:
        name = left.pop()
        owner = next((each for each in kind.__mro__ if name in vars(each)), object)
        if name in seen or owner in (object, nn.Module):
            continue
        seen.add(name)
        value = vars(owner)[name]
        value = value.fget if isinstance(value, property) else value
        yield owner, name, value
        if isinstance(value, FunctionType):
            left += names_in(value)
