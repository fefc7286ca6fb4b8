"""Buffers, weights, generators and modes of modules: copied, left alone, read, and put back."""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pipekit.host.user_frames import warn
from pipekit.layers.edited_tensors import WrittenTensors
from pipekit.layers.python_state import TORCHS, PythonState


@contextmanager
def tensors_replaced(others: Sequence[tuple[dict[str, Any], str, Tensor | None]]) -> Iterator[None]:
    """Put others in the place of buffers or parameters, each named in its module's, for a while."""
    before = [owned[name] for owned, name, _ in others]
    for owned, name, tensor in others:
        owned[name] = tensor
    try:
        yield
    finally:
        for (owned, name, _), tensor in zip(others, before, strict=True):
            owned[name] = tensor


def buffers_untouched(module: nn.Module) -> AbstractContextManager[None]:
    """Let ``module`` write copies of its buffers: batch norm must not count a microbatch twice."""
    # By items: a compiled script's buffers are not iterable by name.
    places = [(each._buffers, n) for each in module.modules() for n, _ in each._buffers.items()]
    copies: dict[int, Tensor] = {}  # modules may share a buffer
    for owned, name in places:
        if (tensor := owned[name]) is not None and id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
    return tensors_replaced([(owned, name, copies.get(id(owned[name]))) for owned, name in places])


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return all buffers by their names, those too that are no part of the ``state_dict()``."""
    return dict(module.named_buffers(remove_duplicate=False))


def set_buffers(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Put saved buffers in the place of those of the same names, on the same device."""
    for name, tensor in saved.items():
        owner, _, own_name = name.rpartition(".")
        buffers = module.get_submodule(owner)._buffers
        before = buffers[own_name]
        buffers[own_name] = tensor.to(tensor.device if before is None else before.device)


def named_generators(module: nn.Module) -> dict[str, torch.Generator]:
    """Return the random generators that modules keep in their attributes, also in containers."""
    return {
        f"{path}.{key}.{number} (torch.Generator)": leaf
        for path, each in module.named_modules()
        for key, value in vars(each).items()
        if key not in TORCHS and isinstance(value, (torch.Generator, list, tuple, dict))
        for number, leaf in enumerate(tree_leaves(value))
        if isinstance(leaf, torch.Generator)
    }


def generators(module: nn.Module) -> list[torch.Generator]:
    """Return the same, each once."""
    return list(dict.fromkeys(named_generators(module).values()))


@contextmanager
def generators_put_back(drawn: Iterable[torch.Generator]) -> Iterator[None]:
    """Put back the states of generators."""
    states = [(each, each.get_state()) for each in drawn]
    try:
        yield
    finally:
        for each, state in states:
            each.set_state(state)


def trained(stage: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that an optimizer of the stage updates."""
    return [p for p in stage.parameters() if p.requires_grad]


Module = TypeVar("Module", bound=nn.Module)

_MARK = "_stays_in_evaluation"


def is_evaluating(model: nn.Module) -> bool:
    """Return whether a model is in evaluation mode as a whole, as one just loaded may be."""
    innermost = (each for each in model.modules() if not any(True for _ in each.children()))
    return not any(each.training for each in innermost)


def in_evaluation(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the modules that somebody has put into evaluation mode, frozen batch norms say."""
    if is_evaluating(model):
        return ()
    return tuple(each for each in model.modules() if not each.training)


def set_mode(model: nn.Module, training: bool, kept: Collection[nn.Module]) -> None:
    """Put a model into training or evaluation mode; ``kept`` stay in evaluation mode."""
    model.train(training)
    for module in kept:
        module.training = False


def as_trained(model: Module) -> Module:
    """Put a model into the mode in which it is trained, for now and for :func:`to_training`."""
    kept = in_evaluation(model)
    model.train()
    if others := [module for module in kept if module.training]:  # than its own train() leaves
        kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in others))
        warn(
            f"{len(others)} of the model's modules are in evaluation mode ({kinds}), and stay in "
            f"it in training: call .train() of the model before if they should not"
        )
    for module in kept:
        setattr(module, _MARK, True)
    to_training(model)
    return model


def to_training(model: nn.Module) -> None:
    """Put a model, or a copy or part of one, into the mode that :func:`as_trained` has found."""
    set_mode(model, True, [each for each in model.modules() if hasattr(each, _MARK)])


@contextmanager
def state_untouched(model: nn.Module) -> Iterator[PythonState]:
    """Let a model run to be looked at: its buffers, its own generators and what it and its hooks
    keep in Python, which is yielded, stay as they were.
    """
    state = PythonState.of(model, hooks=True)
    with buffers_untouched(model), generators_put_back(generators(model)):
        try:
            yield state
        finally:
            state.put_back()


@contextmanager
def modes_put_back(model: nn.Module) -> Iterator[None]:
    """Put back the modes of all modules, and all that their own ``train()`` changes.

    Those of loralib add a product to their weight in evaluation mode, and subtract it again for
    training, which rounds; others keep a cache.
    """
    modes = {module: module.training for module in model.modules()}
    kept: list[PythonState | WrittenTensors] = []
    if any(type(module).train is not nn.Module.train for module in modes):
        state, written = PythonState.of(model, torchs=True), WrittenTensors(model)
        kept += state, written
        with written, torch.no_grad():  # a trial, so that only what they write is copied
            model.train()
            model.eval()
    try:
        for each in kept:
            each.put_back()
        yield
    finally:
        for each in kept:
            each.put_back()
        for module, training in modes.items():
            module.training = training


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
    state = PythonState.of(model, own, torchs=True)
    kept = {t: t.detach().clone() for m in own for t in (*m.parameters(), *m.buffers())}
    try:
        yield
    finally:
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


def copied(module: Module) -> Module:
    """Return a copy with tensors of its own; TypeError names what cannot be copied."""
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "nothing can be trained that is made within torch.inference_mode(): make the pipeline "
            "outside of it"
        )
    try:
        made = copy.deepcopy(module)
    except Exception as error:  # of whatever the user's modules keep
        _refuse_computed(module)
        said = str(error).strip().partition("\n")[0]
        raise TypeError(
            f"training needs a copy of the model, and {_uncopied(module)} cannot be copied "
            f"({said}): give its module a __deepcopy__, or make it when it is first used"
        ) from error
    for name, parameter in made.named_parameters():
        if parameter.requires_grad and not parameter.is_leaf:
            raise TypeError(
                f"training needs a copy of the model, and that of {name!r} cannot be trained, as "
                f"of a module that torch.jit has compiled: give the module itself, or "
                f"torch.compile it"
            )
    return made


_PARAMETRIZED = {
    "weight_norm": "use torch.nn.utils.parametrizations.weight_norm, which does the same",
    "spectral_norm": "use torch.nn.utils.parametrizations.spectral_norm, which does the same",
    "prune": "register the mask by torch.nn.utils.parametrize, or call prune.remove(layer, name)",
}
"""What to do instead of older functions of torch's that compute a weight before each forward."""


def _refuse_computed(module: nn.Module) -> None:
    """Raise TypeError if a hook of torch's own makes a weight that no copy can have."""
    for name, part in module.named_modules():
        if kind := computing(part):
            raise TypeError(
                f"training needs a copy of the model, and {name or 'it'} has a weight that "
                f"torch.nn.utils.{kind} computes, which cannot be copied: {_PARAMETRIZED[kind]}"
            ) from None


def computing(module: nn.Module | None) -> str | None:
    """Return the older function of torch's, if any, that computes a weight before each forward."""
    hooks = module._forward_pre_hooks.values() if module else ()
    kinds = (type(hook).__module__.removeprefix("torch.nn.utils.") for hook in hooks)
    return next((kind for kind in kinds if kind in _PARAMETRIZED), None)


def _uncopied(module: nn.Module) -> str:
    """Return the name of the first attribute that cannot be copied."""
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key in TORCHS:
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f"{name}.{key}".lstrip(".")
    return "it"


def twin(module: Module, shared: Iterable[Tensor]) -> Module:
    """Return a copy of a module with the same buffers and generators, whoever may replace them.

    They have ``shared`` tensors in common; of other parameters the copy has its own.
    """
    common = {id(each): each for each in (*module.buffers(), *generators(module), *shared)}
    copied = copy.deepcopy(module, common)
    for one, original in zip(copied.modules(), module.modules(), strict=True):
        one._buffers = original._buffers
    return copied
