"""The operators that draw random numbers, caught in one thread: pipekit's hook into PyTorch.

PyTorch's CPU operators draw from one generator a process, which the threads of several stages would
take turns at in no fixed order.  A :class:`Drawing` is handed each of these operators before it
runs.  It is a dispatch key that does so, switched on in this thread alone, as PyTorch's
``vmap`` catches them by another key.  All other operators pass it by.  Layers that ask PyTorch for
its generators' states, or set them, as ``torch.utils.checkpoint`` does, mean those of their thread.

The key is private, ``TESTING_ONLY_GenericMode``: the one that a thread can switch on and for which
PyTorch has no kernels.  It costs a stage of two small linear layers and two ReLUs 2 to 3 us on one
core.  Public ways fail (torch 2.14; operators, recurrent and scripted layers, backwards, ``vmap``):

- ``TorchDispatchMode`` (42 us) misses custom operators, and PyTorch takes other formulas in it.
- ``TorchFunctionMode`` (24 us) misses scripted layers, and sees only the whole of an LSTM.
- ``Library.impl`` for each device (2 us) does not know for whom PyTorch's own threads work, so that
  ``torch.jit.fork``, deep reentrant checkpoints and backwards on accelerators draw unnoticed.
- ``torch.random.fork_rng`` around a layer needs a lock over its whole forward.
- A ``torch.Generator`` is taken neither by dropout nor by recurrent layers.
- ``torch.autocast`` refuses float32 on the CPU; ``torch.func.vmap`` usual autograd functions.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.library import Library, fallthrough_kernel

from pipekit.devices import CPU, RandomState, accelerators, random_states

RNG_LOCK = threading.RLock()
"""Held by a thread that draws from the default generators, or borrows them."""

_KEY_NAME = "TESTING_ONLY_GenericMode"
_ACCELERATORS = ("CUDA", "XPU", "MPS", "HPU", "PrivateUse1")
_DRAW_NOTHING = {"train": False, "training": False, "dropout_p": 0.0}  # values of arguments


@dataclass(frozen=True, slots=True)
class RandomOperator:
    """An operator that may draw random numbers."""

    call: Callable[..., Any]
    places: Mapping[str, tuple[int, Any]]  # by name, of arguments, and their defaults

    @classmethod
    def of(cls, call: Any) -> "RandomOperator":
        """Return what is known of an operator by its schema."""
        arguments = enumerate(call._schema.arguments)
        return cls(call, {each.name: (place, each.default_value) for place, each in arguments})

    def draws(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call draws, as far as its arguments tell."""
        # Attention without dropout and the like are most of what is caught.
        return not any(
            name in self.places and self._given(name, args, kwargs) == off
            for name, off in _DRAW_NOTHING.items()
        )

    def has_generator(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call is given a generator of somebody's own."""
        return "generator" in self.places and self._given("generator", args, kwargs) is not None

    def takes_generator(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call is on the CPU, and can be given a generator that it lacks.

        Tensors of other classes may be those of a tracer, whose graph would keep the generator.
        """
        return (
            "generator" in self.places
            and type(args[0]) in (Tensor, nn.Parameter)
            and args[0].is_cpu
            and len(args) <= self.places["generator"][0]
            and kwargs.get("generator") is None
        )

    def _given(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        place, default = self.places[name]
        return args[place] if place < len(args) else kwargs.get(name, default)


_seed_all = torch.manual_seed  # PyTorch's own


class Drawing:
    """What this thread's operators that may draw do within; an inner context replaces an outer.

    By itself, it refuses draws.  So do PyTorch's own threads that work for this one, those of a
    backward on an accelerator say.
    """

    _guard: Any
    _outer: "Drawing"

    def __enter__(self) -> Self:
        self._outer = _thread.drawing
        self._guard = torch._C._IncludeDispatchKeyGuard(_key())
        _thread.drawing = self
        self._guard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        _thread.drawing = self._outer

    def run(self, operator: RandomOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator that may draw."""
        first = next((each for each in args if isinstance(each, Tensor)), None)
        generators = random_states(CPU if first is None else first.device)
        with RNG_LOCK:
            before = [generator.get_state() for generator in generators]
            result = operator.call(*args, **kwargs)
            after = [generator.get_state() for generator in generators]
        # As lists, since tensors cannot be compared while torch.compile traces.
        if any(one.tolist() != other.tolist() for one, other in zip(before, after, strict=True)):
            raise ValueError(
                "a layer draws random numbers in its backward, which cannot be the same as in its "
                "forward: give torch.utils.checkpoint within a layer preserve_rng_state=True, the "
                "default, or use recompute='always' instead"
            )
        return result

    def states(self) -> Sequence[RandomState]:
        """Return the states that ``get_rng_state`` and ``set_rng_state`` mean: the host's, and that
        of the accelerator that the thread computes on, if any; none: PyTorch's own.
        """
        return ()

    def manual_seed(self, seed: int) -> None:
        """Draw from here on as if just seeded."""
        _seed_all(seed)


class _DrawingThread(threading.local):
    drawing = Drawing()


_thread = _DrawingThread()
_registering = threading.Lock()


_looked_at: set[str] = set()  # operators
_libraries: list[Library] = []


@cache
def _key() -> Any:
    """Return the key, with kernels of its own for all operators that may draw."""
    with _registering:  # workers begin at once, and it can be done once only
        return prepare()


os.register_at_fork(after_in_child=_key.cache_clear)  # libraries may bring more operators there


def prepare() -> Any:
    """Have operators that may draw, of those that are new, call :func:`_caught` where the key is
    switched on, and return the key.
    """
    try:
        key = torch._C._dispatch_key_parse(_KEY_NAME)
        without = torch._C.DispatchKeySet(key)
        new = [name for name in torch._C._dispatch_get_all_op_names() if name not in _looked_at]
        operators = list(_random_operators(new))
    except (AttributeError, RuntimeError) as error:
        raise RuntimeError(
            f"torch {torch.__version__} lacks a private part by which layers get random numbers of "
            f"their own (dispatch key {_KEY_NAME}): install an earlier torch; 2.14 has it"
        ) from error
    if not _libraries:
        _libraries.append(Library("_", "IMPL"))
        _libraries[0].fallback(fallthrough_kernel, _KEY_NAME)
        _make_states_the_threads(torch, 0)
        for kind in {device.type for device in accelerators()}:
            _make_states_the_threads(torch.get_device_module(kind), 1)
        torch.manual_seed = _manual_seed
    libraries: dict[str, Library] = {}
    for operator in operators:
        if operator.namespace not in libraries:
            libraries[operator.namespace] = Library(operator.namespace, "IMPL")
        caught = partial(_caught, without, RandomOperator.of(operator))
        libraries[operator.namespace].impl(operator, caught, _KEY_NAME)
    _libraries.extend(libraries.values())
    _looked_at.update(new)
    return key


def _make_states_the_threads(module: Any, place: int) -> None:
    """Have functions of torch, or of its module for a device, ask the states of their thread."""
    get, put = module.get_rng_state, module.set_rng_state

    @wraps(get)
    def get_rng_state(*device: Any, **named: Any) -> Tensor:
        for state in _thread.drawing.states()[place : place + 1]:
            return state.get_state()
        return cast(Tensor, get(*device, **named))

    @wraps(put)
    def set_rng_state(new_state: Tensor, *device: Any, **named: Any) -> None:
        for state in _thread.drawing.states()[place : place + 1]:
            state.set_state(new_state)
            return
        put(new_state, *device, **named)

    module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state


@wraps(_seed_all)
def _manual_seed(seed: Any) -> torch.Generator:
    _thread.drawing.manual_seed(int(seed))
    return torch.default_generator


def _random_operators(names: Iterable[str]) -> Iterator[Any]:
    """Yield the operators that may draw, without those that only call others which are caught."""
    for full_name in names:
        qualified, _, overload = full_name.partition(".")
        found = torch._C._get_operation_overload(qualified, overload)
        if not found or torch.Tag.nondeterministic_seeded not in found[2]:
            continue
        namespace, _, name = qualified.partition("::")
        if namespace != "aten" or not _only_calls_others(full_name):
            yield getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def _only_calls_others(operator: str) -> bool:
    """Return whether an operator is a composite for which no accelerator has a kernel.

    Only composites above autograd are meant: others, such as ``rand``, reach a dispatch mode whole,
    and what they call within it is not caught.
    """

    def has(kernel: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, kernel))

    return has("CompositeImplicitAutograd") and not any(
        has(kind) or has(f"Autograd{kind}") for kind in _ACCELERATORS
    )


def _caught(without: Any, operator: RandomOperator, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(without):
        if operator.draws(args, kwargs):
            return _thread.drawing.run(operator, args, kwargs)
        return operator.call(*args, **kwargs)
