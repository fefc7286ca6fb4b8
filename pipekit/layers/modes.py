"""Modes of modules put back, with what a ``train()`` of their own does beside."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from pipekit.layers.module_state import WrittenTensors
from pipekit.layers.python_state import PythonState


@contextmanager
def modes_put_back(model: nn.Module) -> Iterator[None]:
    """Put back the modes of all modules, and all that their own ``train()`` changes.

    Those of loralib add a product to their weight in evaluation mode, and subtract it again for
    training, which rounds; others keep a cache.
    """
    modes = {module: module.training for module in model.modules()}
    own = [module for module in modes if type(module).train is not nn.Module.train]
    with _own_changes_put_back(model, own) if own else nullcontext():
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


@contextmanager
def _own_changes_put_back(model: nn.Module, own: Sequence[nn.Module]) -> Iterator[None]:
    """Put back what modules change as they go from mode to mode, their modes, too."""
    state, written = PythonState(model, own), WrittenTensors(model)
    held = {module: _held(module) for module in model.modules()}
    attributes = {module: dict(vars(module)) for module in own}
    modes = {module: module.training for module in held}

    def put_back() -> None:
        _put_back(held, modes)
        state.put_back()
        for module, before in attributes.items():  # that were taken away
            vars(module).update({key: before[key] for key in before.keys() - vars(module).keys()})
        written.put_back()

    with written, torch.no_grad():  # a trial, so that only what they write is copied
        model.train()
        model.eval()
    put_back()
    try:
        yield
    finally:
        put_back()


@contextmanager
def merged_put_back(model: nn.Module) -> Iterator[None]:
    """Put back what modules' own ``train()`` changes in a stage that evaluates, and nothing else.

    Stages may share modules without weights, whose modes are not one worker's to put back.
    """
    own = [
        module
        for module in model.modules()
        if type(module).train is not nn.Module.train and not hasattr(module, "sets_modes_alone")
    ]
    state, held = PythonState(model, own), {module: _held(module) for module in own}
    kept = {t: t.detach().clone() for m in own for t in (*m.parameters(), *m.buffers())}
    modes = {module: module.training for module in own}
    try:
        yield
    finally:
        _put_back(held, modes)
        state.put_back()
        for tensor, copy in kept.items():
            tensor.data.copy_(copy)


def exceptions(model: nn.Module) -> Mapping[bool, tuple[str, ...]]:
    """Return, by mode, the names of modules that the model's own ``train()`` leaves in the other.

    So models freeze their batch norms whose stages, as other modules, would have no such method.
    """
    found = {}
    with modes_put_back(model):
        for training in (True, False):
            model.train(training)
            named = model.named_modules(remove_duplicate=False)
            found[training] = tuple(n for n, each in named if n and each.training != training)
    return found


_Held = dict[str, dict[str, Any]]


def _held(module: nn.Module) -> _Held:
    return {name: dict(vars(module)[name]) for name in ("_parameters", "_buffers", "_modules")}


def _put_back(held: Mapping[nn.Module, _Held], modes: Mapping[nn.Module, bool]) -> None:
    for module, parts in held.items():
        for name, before in parts.items():  # in place: copies of a stage share them
            now = vars(module)[name]
            now.clear()
            now.update(before)
        module.training = modes[module]
