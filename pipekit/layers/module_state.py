"""Buffers, weights and modes of modules: left alone, read, and put back."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter


@contextmanager
def buffers_untouched(module: nn.Module) -> Iterator[None]:
    """Let ``module`` write copies of its buffers: batch norm must not count a microbatch twice."""
    originals = [(owner, dict(owner._buffers)) for owner in module.modules() if owner._buffers]
    for owner, tensors in originals:
        owner._buffers.update(
            {name: None if t is None else t.clone() for name, t in tensors.items()}
        )
    try:
        yield
    finally:
        for owner, tensors in originals:
            owner._buffers.update(tensors)


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
    """Put a model into the mode in which it is trained, for now and for :func:`to_training`."""
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


class KeptWeights:
    """The parameters of a module as they are now, with a copy of each.

    A forward edits weights that normalizes or clips them, or follows them with others: an
    embedding with ``max_norm``, a momentum encoder.
    """

    def __init__(self, module: nn.Module) -> None:
        self._kept: dict[str, tuple[nn.Parameter, Tensor, Tensor]] = {
            name: (weight, weight.data, weight.detach().clone())
            for name, weight in module.named_parameters()
            if not isinstance(weight, UninitializedParameter) and _is_plain(weight.data)
        }

    def edited(self) -> list[str]:
        """Return the names of those that have other numbers."""
        pairs = ((name, weight, copy) for name, (weight, _, copy) in self._kept.items())
        return [name for name, weight, copy in pairs if not _equal(weight.detach(), copy)]

    def rebound(self) -> list[str]:
        """Return the names of those whose ``.data`` is another tensor."""
        return [
            name
            for name, (weight, data, _) in self._kept.items()
            if weight.data_ptr() != data.data_ptr()
        ]

    def put_back(self) -> None:
        """Let all be as they were, in the same memory."""
        for weight, data, copy in self._kept.values():
            if weight.data_ptr() != data.data_ptr():
                weight.data = data
            if not _equal(data, copy):
                data.copy_(copy)


@contextmanager
def weights_untouched(module: nn.Module) -> Iterator[KeptWeights]:
    """Put back what a forward has done to the weights."""
    kept = KeptWeights(module)
    try:
        yield kept
    finally:
        kept.put_back()


def memory_of(tensor: Tensor) -> int:
    """Return where the numbers of a tensor are, also those of its views; 0 if it has none there."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a sparse one, say
        return 0


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is its numbers: neither sparse, nor of a class of its own."""
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, be they of any type or no numbers at all."""
    pair = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return one.shape == other.shape and torch.equal(*pair)
