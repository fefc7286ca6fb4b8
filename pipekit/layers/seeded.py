"""Layers that draw random numbers, each from a stream of its own.

A dropout mask must not depend on which worker drew it, in what order, or for which time (a
recomputed forward draws again).  So each layer's forward behaves as if the default generator had
just been seeded with :func:`layer_seed`: any partition, any schedule, either transport and the
oracle then see the same numbers.

While layers run under :class:`Seeded`, each of their random operators on the CPU is given a
generator of the layer's own.  Those that take none, and those on accelerators, borrow the default
generators, set to the layer's state.  A layer may begin to draw in the midst of a training.
"""

import pickle
import random
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipekit.devices import CPU, is_accelerator, new_generators, random_states
from pipekit.layers.random_operators import RNG_LOCK, Drawing, RandomOperator

Seed = int | Callable[[], int]
"""A seed, or what returns it when the first number is drawn."""


def layer_seed(seed: Seed, layer: int, microbatch: int) -> int:
    """Return the 32-bit seed of one layer's forward pass."""
    if callable(seed):
        with RNG_LOCK:  # by one thread at a time: it may be drawn
            seed = seed()
    return zlib.crc32(f"{seed}/{layer}/{microbatch}".encode())


def torch_seed() -> int:
    """Return the seed last given to ``torch.manual_seed``; 0 if there was none."""
    seed = torch.initial_seed()
    return 0 if seed == torch.Generator().initial_seed() else seed


class Seeded(Drawing):
    """Run operators as if the default generators had just been seeded, and leave them untouched."""

    def __init__(self, seed: Seed, device: torch.device) -> None:
        self._device = device
        self.drew = False  # whether an operator has run that may draw, or the state was asked for
        self.drew_shared = False  # whether one has that was given no generator of its own
        self.seed(seed)

    def seed(self, seed: Seed) -> None:
        """Go on as if the generators had just been seeded again."""
        self._seed: Seed | None = seed

    manual_seed = seed

    @cached_property
    def _generators(self) -> Sequence[torch.Generator]:
        return new_generators(self._device)

    def states(self) -> Sequence[torch.Generator]:
        """Return the generators that operators draw from: the host's, and the device's own."""
        self.drew = True
        if self._seed is not None:
            seed = self._seed if isinstance(self._seed, int) else self._seed()
            for generator in self._generators:
                generator.manual_seed(seed)
            self._seed = None
        return self._generators

    def run(self, operator: RandomOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        generators = self.states()
        self.drew_shared |= not operator.has_generator(args, kwargs)
        if operator.takes_generator(args, kwargs):
            return operator.call(*args, **kwargs | {"generator": generators[0]})
        with RNG_LOCK:
            defaults = random_states(self._device)
            outer = [default.get_state() for default in defaults]
            for default, generator in zip(defaults, generators, strict=True):
                default.set_state(generator.get_state())
            try:
                return operator.call(*args, **kwargs)
            finally:
                for default, generator, state in zip(defaults, generators, outer, strict=True):
                    generator.set_state(default.get_state())
                    default.set_state(state)


class DrawingAgain(Drawing):
    """A backward's random numbers: those that ``torch.utils.checkpoint`` draws a second time.

    It sets the states that it has found in the forward, and puts back those before.  All other
    draws are refused.
    """

    def __init__(self, device: torch.device) -> None:
        self._seeded = Seeded(0, device)
        self._states = [_SetState(self._seeded, n) for n in range(1 + is_accelerator(device))]

    def run(self, operator: RandomOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        needed = self._states[: 1 if operator.takes_generator(args, kwargs) else None]
        draw = self._seeded.run if all(state.is_set for state in needed) else super().run
        return draw(operator, args, kwargs)

    def states(self) -> Sequence["_SetState"]:
        return self._states

    def manual_seed(self, seed: int) -> None:
        self._seeded.seed(seed)
        for state in self._states:
            state.is_set = True


class _SetState:
    """The state of one of the generators of :class:`Seeded`; empty before any is set."""

    def __init__(self, seeded: Seeded, place: int) -> None:
        self._seeded, self._place, self.is_set = seeded, place, False

    def get_state(self) -> Tensor:
        if not self.is_set:
            return torch.empty(0, dtype=torch.uint8, device=CPU)
        return self._seeded.states()[self._place].get_state()

    def set_state(self, state: Tensor) -> None:
        self.is_set = len(state) > 0
        if self.is_set:
            self._seeded.states()[self._place].set_state(state)


class DrawingUndisturbed(Drawing):
    """Data loaders draw from the default generators, while no other thread borrows them."""

    def run(self, operator: RandomOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with RNG_LOCK:
            return operator.call(*args, **kwargs)


def numbers_so_far() -> dict[str, Any]:
    """Return the states of the generators that all threads share, by their libraries."""
    return {"Python": random.getstate(), "NumPy": pickle.dumps(np.random.get_state())}


def drawn_since(before: dict[str, Any]) -> set[str]:
    """Return the libraries from whose generators somebody has drawn meanwhile."""
    return {name for name, state in numbers_so_far().items() if state != before[name]}
