"""Layers that draw random numbers, each from a stream of its own.

PyTorch's CPU operators draw from one generator a process, which the threads of several stages would
take turns at in no fixed order.  While layers run under :class:`Seeded`, each of their random
operators borrows that generator, set to the layer's own state, and gives it back as it was.

These operators are caught by a dispatch key that is switched on in this thread alone, as PyTorch's
own ``vmap`` catches them by another.  All others pass it by, so that watching costs nothing, and
every pass is watched: a layer may begin to draw in the midst of a training.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.library import Library, fallthrough_kernel

from pipekit.devices import CPU, random_states

RNG_LOCK = threading.RLock()

# Of the keys that a thread can switch on, the one for which PyTorch itself has no kernels.
_KEY_NAME = "TESTING_ONLY_GenericMode"
_KEY = torch._C._dispatch_key_parse(_KEY_NAME)

Seed = int | Callable[[], int]
"""A seed, or what returns it when the first number is drawn."""


class _Catching:
    """A context that catches what operators of this thread draw; an inner one replaces an outer."""

    def __enter__(self) -> Self:
        _catch_random_operators()
        self._outer, _thread.catching = _thread.catching, self
        self._guard = torch._C._IncludeDispatchKeyGuard(_KEY)
        self._guard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        _thread.catching = self._outer

    def run(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an operator that may draw."""
        raise NotImplementedError


class Undisturbed(_Catching):
    """Let operators draw from the default generators, while no other thread borrows them.

    As data loaders do, which shuffle and augment beside layers that draw numbers of their own.
    """

    def run(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an operator that may draw."""
        with RNG_LOCK:
            return operator(*args, **kwargs)


class Seeded(_Catching):
    """Run operators as if the default generators had just been seeded, and leave them untouched.

    Args:
        seed: of what is drawn first.
        device: on which operators may draw, besides the CPU.

    Attributes:
        drew: whether any operator drew a random number.
    """

    def __init__(self, seed: Seed, device: torch.device) -> None:
        self._device = device
        self.drew = False
        self.seed(seed)

    def seed(self, seed: Seed) -> None:
        """Go on as if the generators had just been seeded again."""
        self._seed = seed
        self._states: Sequence[Tensor] | None = None

    def run(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an operator that may draw."""
        with RNG_LOCK:
            # First of all: whoever makes up a seed may draw it.
            seed = 0
            if self._states is None:
                seed = self._seed if isinstance(self._seed, int) else self._seed()
            generators = random_states(self._device)
            outer = [generator.get_state() for generator in generators]
            if self._states is None:
                for generator in generators:
                    generator.manual_seed(seed)
                self._states = [generator.get_state() for generator in generators]
            else:
                for generator, state in zip(generators, self._states, strict=True):
                    generator.set_state(state)
            before = self._states
            try:
                return operator(*args, **kwargs)
            finally:
                self._states = [generator.get_state() for generator in generators]
                self.drew = self.drew or not all(map(torch.equal, before, self._states))
                for generator, state in zip(generators, outer, strict=True):
                    generator.set_state(state)


@contextmanager
def drawing_refused() -> Iterator[None]:
    """Refuse, in this thread and those of its backward, operators that draw random numbers.

    Raises:
        ValueError: one of them does so.
    """
    _catch_random_operators()
    outer, _thread.catching = _thread.catching, None
    try:
        with torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        _thread.catching = outer


class _Thread(threading.local):
    catching: _Catching | None = None


_thread = _Thread()


_registering = threading.Lock()


def _catch_random_operators() -> None:
    """Have all operators that may draw call :func:`_caught` where the key is switched on."""
    with _registering:  # workers begin at once, and it can be done once only
        _registered()


@cache
def _registered() -> list[Library]:
    """Return what must not be forgotten, as its kernels would be, too."""
    everything = Library("_", "IMPL")
    everything.fallback(fallthrough_kernel, _KEY_NAME)
    libraries: dict[str, Library] = {}
    for full_name in torch._C._dispatch_get_all_op_names():
        qualified, _, overload = full_name.partition(".")
        found = torch._C._get_operation_overload(qualified, overload)
        if not found or torch.Tag.nondeterministic_seeded not in found[2]:
            continue
        namespace, _, name = qualified.partition("::")
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        if namespace not in libraries:
            libraries[namespace] = Library(namespace, "IMPL")
        caught = partial(_caught, operator, _switches(operator._schema))
        libraries[namespace].impl(operator, caught, _KEY_NAME)
    return [everything, *libraries.values()]


class _Switch(NamedTuple):
    """An argument with which an operator that may draw draws nothing.

    Attributes:
        place: among the arguments.
        name: likewise.
        off: the value with which nothing is drawn.
        default: of the argument; None: it has none.
    """

    place: int
    name: str
    off: float
    default: Any

    def is_off(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the argument has the value with which nothing is drawn."""
        given = args[self.place] if self.place < len(args) else kwargs.get(self.name, self.default)
        return given is not None and given == self.off


def _switches(schema: Any) -> list[_Switch]:
    """Return the switches among an operator's arguments.

    Dropout in evaluation, attention without dropout and the like are most of what is caught, and
    borrowing a generator for each of them would take longer than what they compute.
    """
    off = {"train": False, "training": False, "dropout_p": 0.0}
    if schema.name.removesuffix("_") in _RETURN_THEIR_INPUT:
        off["p"] = 0.0
    return [
        _Switch(place, each.name, off[each.name], each.default_value)
        for place, each in enumerate(schema.arguments)
        if each.name in off
    ]


_RETURN_THEIR_INPUT = frozenset(
    f"aten::{kind}dropout" for kind in ("", "alpha_", "feature_", "feature_alpha_")
)
"""Operators that draw nothing where nothing is to be dropped; the native one draws all the same."""


def _caught(
    operator: Callable[..., Any], switches: Sequence[_Switch], *args: Any, **kwargs: Any
) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
        if any(switch.is_off(args, kwargs) for switch in switches):
            return operator(*args, **kwargs)
        if _thread.catching is not None:
            return _thread.catching.run(operator, *args, **kwargs)
        tensors = (each for each in args if isinstance(each, Tensor))
        first = next(tensors, None)
        generators = random_states(CPU if first is None else first.device)
        with RNG_LOCK:
            before = [generator.get_state() for generator in generators]
            result = operator(*args, **kwargs)
            if not all(
                torch.equal(g.get_state(), s) for g, s in zip(generators, before, strict=True)
            ):
                raise ValueError(
                    "a layer draws random numbers in its backward, which cannot be the same as in "
                    "its forward: instead of torch.utils.checkpoint within a layer, use "
                    "recompute='always'"
                )
        return result
