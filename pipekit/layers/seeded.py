"""Layers that draw random numbers, each from a stream of its own.

PyTorch's CPU operators draw from one generator a process, which the threads of several stages would
take turns at in no fixed order.  While a layer runs under :class:`Seeded`, each of its random
operators borrows that generator, set to the layer's own state, and gives it back as it was.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipekit.devices import random_states

RNG_LOCK = threading.RLock()


class Seeded(TorchDispatchMode):
    """Run operators as if the default generators had just been seeded, and leave them untouched.

    Attributes:
        drew: whether any operator drew a random number.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._device = seed, device
        self._state: list[Tensor] | None = None
        self.drew = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:  # type: ignore[attr-defined]
            return func(*args, **(kwargs or {}))
        self.drew = True
        generators = random_states(self._device)
        with RNG_LOCK:
            outer = [generator.get_state() for generator in generators]
            if self._state is None:
                for generator in generators:
                    generator.manual_seed(self._seed)
            else:
                for generator, state in zip(generators, self._state, strict=True):
                    generator.set_state(state)
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self._state = [generator.get_state() for generator in generators]
                for generator, state in zip(generators, outer, strict=True):
                    generator.set_state(state)
