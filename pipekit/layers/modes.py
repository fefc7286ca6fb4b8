"""Training mode as a plain loop has it: what somebody has put into evaluation mode stays in it."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)

_MARK = "_stays_in_evaluation"


def in_evaluation(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the modules that are in evaluation mode while others are in training mode.

    Somebody has put them there, frozen batch norms say.  A model that is in evaluation mode as a
    whole, as one that was just loaded may be, has none.
    """
    innermost = (each for each in model.modules() if not any(True for _ in each.children()))
    if not any(each.training for each in innermost):
        return ()
    return tuple(each for each in model.modules() if not each.training)


def set_mode(model: nn.Module, training: bool, kept: Collection[nn.Module]) -> None:
    """Put a model into training or evaluation mode; ``kept`` stay in evaluation mode."""
    model.train(training)
    for module in kept:
        module.training = False


def as_trained(model: Module) -> Module:
    """Put a model into the mode in which it is trained, for now and for :func:`to_training`.

    Warns:
        UserWarning: some modules are in evaluation mode and stay in it.
    """
    kept = in_evaluation(model)
    if kept:
        kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in kept))
        warnings.warn(
            f"{len(kept)} of the model's modules are in evaluation mode ({kinds}), and stay in it "
            f"in training: call .train() of the model before if they should not",
            stacklevel=3,
        )
    for module in kept:
        setattr(module, _MARK, True)
    to_training(model)
    return model


def to_training(model: nn.Module) -> None:
    """Put a model, or a copy or part of one, into the mode that :func:`as_trained` has found."""
    set_mode(model, True, [each for each in model.modules() if hasattr(each, _MARK)])


@contextmanager
def modes_put_back(model: nn.Module) -> Iterator[None]:
    """Put back the modes of all modules."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


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
