"""The random numbers that operators on a device draw when they are given no generator."""

from contextlib import AbstractContextManager
from inspect import unwrap
from typing import Protocol

import torch
from torch import Tensor

from pipekit.devices.streams import is_accelerator


class RandomState(Protocol):
    """The random numbers that operators draw when they are given no generator."""

    def get_state(self) -> Tensor: ...

    def set_state(self, state: Tensor) -> object: ...


def random_states(device: torch.device) -> list[RandomState]:
    """Return whatever operators on a device may draw from: the host's, and the device's own."""
    host: RandomState = torch.default_generator
    return [host, _AcceleratorRandomState(device)] if is_accelerator(device) else [host]


def new_generators(device: torch.device) -> list[torch.Generator]:
    """Return new generators of the kinds of :func:`random_states`, whose states are theirs too."""
    host = torch.Generator()
    return [host, torch.Generator(device)] if is_accelerator(device) else [host]


class _AcceleratorRandomState:
    """That of an accelerator's default generator, for which PyTorch has no name that all share.

    A thread may have states of its own in its place (layers/random_operators.py wraps the module's
    functions): the generator's are meant.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)

    def get_state(self) -> Tensor:
        state: Tensor = unwrap(self._module.get_rng_state)(self._device)
        return state

    def set_state(self, state: Tensor) -> None:
        unwrap(self._module.set_rng_state)(state, self._device)


def random_states_put_back(device: torch.device) -> AbstractContextManager[None]:
    """Return a context after which operators draw what they would have drawn without it."""
    if not is_accelerator(device):
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device.index], device_type=device.type)
