"""A model that runs to be looked at: left as it was, and without state of its own."""

import pickle
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from torch import nn

from pipekit.devices import random_states_put_back
from pipekit.layers.modes import modes_put_back
from pipekit.layers.python_state import PythonState, module_names, state_untouched
from pipekit.layers.weights import weights_untouched
from pipekit.partition.recording.refusal import NotRecordable

_ABSENT = object()


def device_of(model: nn.Module) -> torch.device:
    """Return where the first tensor of a model lies."""
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back the modes of all modules, and the state of the random generators."""
    with random_states_put_back(device_of(model)), modes_put_back(model):
        yield


@contextmanager
def run_to_look_at(model: nn.Module) -> Iterator[None]:
    """Let a forward leave nothing in a model: no weights, no buffers, nothing in Python."""
    with state_untouched(model), weights_untouched(model):
        yield


@contextmanager
def drawing_from_torch() -> Iterator[None]:
    """Refuse a forward that draws from Python's or NumPy's generator.

    Between blocks a record would hold what was drawn to be so for ever; within one, stages would
    draw in no fixed order.
    """
    before = _drawn_so_far()
    yield
    drew = {source: state != before[source] for source, state in _drawn_so_far().items()}
    for source, has_drawn in drew.items():
        if has_drawn:
            raise NotRecordable(
                f"the forward draws from {source}, whose numbers stages would not draw alike: draw "
                f"by torch, torch.rand(()) say, within a block, or leave it out (in transformers: "
                f"config.layerdrop = 0 or config.apply_spec_augment = False)"
            )


def _drawn_so_far() -> dict[str, bytes]:
    """Return the states of the generators that are not torch's."""
    states = {"Python's random": random.getstate(), "NumPy's generator": np.random.get_state()}
    return {source: pickle.dumps(state) for source, state in states.items()}


@contextmanager
def stateless(outer: Iterable[nn.Module], model: nn.Module) -> Iterator[None]:
    """Refuse a forward that keeps something in its module, where stages would not find it."""
    names = module_names(model)
    recorded = set(outer)
    before = {module: _tensors(module) for module in names if module in recorded}
    state = PythonState(model, before)
    yield
    changed = [(change.module, change.key) for change in state.changes()]
    for module, tensors in before.items():
        after = _tensors(module).items()
        keys = (key for key, tensor in after if tensor is not tensors.get(key, _ABSENT))
        changed += [(names[module], key) for key in keys]
    for name, key in changed:
        raise NotRecordable(
            f"the forward of {name} changes {key!r}, which stages would not do: keep it in a "
            f"buffer that is edited in place, or put what changes and what reads it into one block "
            f"by blocks=[...]"
        )


def _tensors(module: nn.Module) -> dict[str, object]:
    """Return a module's own parameters and buffers, by name."""
    return {**module._parameters, **module._buffers}
