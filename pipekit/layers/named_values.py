"""What functions read from their files, handed on to another process's copies of these.

A worker process imports a user's files anew: it knows nothing of a setting that the script has
changed there, or of a context variable.
"""

import copy
import sys
import sysconfig
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pipekit.layers.python_state import PLAIN, attributes_named, names_in
from pipekit.layers.user_functions import functions_of

OWN = ...
"""In place of a value: as the process has it by itself."""

_LONG = 1_000  # longer containers are data and no settings
_LIBRARIES = ("pipekit", "torch", "numpy", *sys.stdlib_module_names)  # which are not looked into
_LOOKED_AT = (nn.Module, Tensor, ContextVar)
_INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))


class Place(NamedTuple):
    """A variable of a file, or an attribute of the class or object there that ``holder`` names."""

    module: str
    holder: str
    name: str


class NamedValues:
    """What some modules, losses and other functions name in this process, and what they call does.

    These are plain values of a user's files, and context variables.
    ``known`` grows by the values that were sent, or that were there before others are applied;
    ``codes`` are of the user's functions, by file and name: after a reload they are others.
    """

    def __init__(self, objects: Iterable[Any], known: MutableMapping[Place, Any]) -> None:
        self._known, self._seen = known, set[FunctionType]()
        self.codes: dict[tuple[str, str], CodeType] = {}
        self._owners: dict[Place, list[Any]] = {}  # several: a script's functions, each copied
        for each in objects:
            parts = each.modules() if isinstance(each, nn.Module) else [each]
            for kind in dict.fromkeys(map(type, parts)):
                for base, name, _ in attributes_named(kind, ["__call__", "forward"]):
                    self._add(base.__module__, base.__qualname__, base, {name})
            for function in functions_of(each):
                self._look(function, Place("", "", ""), set())

    def changed(self) -> dict[Place, Any]:
        """Return the values that are not known, which then are."""
        found = {}
        for place, (owner, *_) in self._owners.items():
            value = _variables(owner).get(place.name)
            if value is self._known.get(place, OWN):
                continue  # not pickled once more, only to see whether it can be sent
            value = _sent(value, place)
            if not _is_same(value, self._known.get(place, OWN)):
                found[place] = value
                self._known[place] = copy.deepcopy(value)  # its contents may change
        return found

    def apply(self, values: Mapping[Place, Any]) -> None:
        """Let the places here have the values that they have in another process."""
        for place, value in values.items():
            for owner in self._owners.get(place, ()):
                variables = _variables(owner)
                now = variables.get(place.name)
                before = self._known.setdefault(place, now)
                value = before if value is OWN else value
                if value is now or _is_same(value, now):
                    continue
                if isinstance(now, ContextVar):
                    now.set(value)
                elif isinstance(now, dict) and type(now) is type(value):
                    now.clear()  # others may have it, too
                    now.update(value)
                elif isinstance(owner, type):
                    setattr(owner, place.name, value)
                else:  # also of an object that lets nobody set attributes
                    variables[place.name] = value

    def _look(self, value: Any, place: Place, names: set[str]) -> None:
        """Look for the names in a file or an object, and for its own in a function."""
        if isinstance(value, FunctionType):
            library = (value.__module__ or "").partition(".")[0]
            if value not in self._seen and library not in _LIBRARIES:
                self._seen.add(value)
                if "<" not in value.__qualname__:  # else it has no name in its file
                    self.codes[value.__module__, value.__qualname__] = value.__code__
                known = value.__globals__
                self._add(known.get("__name__", ""), "", known, names_in(value))
        elif isinstance(value, ModuleType):
            self._add(value.__name__, "", vars(value), names)
        elif hasattr(value, "__dict__") and not isinstance(value, _LOOKED_AT):
            self._add(place.module, f"{place.holder}.{place.name}".lstrip("."), value, names)

    def _add(self, module: str, holder: str, owner: Any, names: set[str]) -> None:
        variables = _variables(owner)
        for name in names & variables.keys():
            place = Place(module, holder, name)
            owners = self._owners.setdefault(place, [])
            if not any(owner is each for each in owners):
                owners.append(owner)
                self._look(variables[name], place, names)


def _variables(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _sent(value: Any, place: Place) -> Any:
    """Return a user's setting; of all else OWN."""
    file = getattr(sys.modules.get(place.module), "__file__", None) or ""
    if isinstance(value, ContextVar):
        with suppress(LookupError):  # neither set nor with a default
            value = value.get()
    leaves = tree_leaves(value) if isinstance(value, (dict, list, tuple)) else [value]
    is_plain = len(leaves) <= _LONG and all(isinstance(leaf, PLAIN) for leaf in leaves)
    return value if is_plain and not file.startswith(_INSTALLED) else OWN


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
