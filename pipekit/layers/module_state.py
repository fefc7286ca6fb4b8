"""Buffers, weights, generators and modes of modules: left alone, read, and put back."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_leaves

TORCHS = frozenset(vars(nn.Module()))
"""What torch keeps in every module for itself: tensors, children, hooks, the mode."""


@contextmanager
def buffers_untouched(module: nn.Module) -> Iterator[None]:
    """Let ``module`` write copies of its buffers: batch norm must not count a microbatch twice."""
    originals = [(owner, dict(owner._buffers)) for owner in module.modules() if owner._buffers]
    copies: dict[int, Tensor] = {}  # modules may share a buffer
    for owner, tensors in originals:
        for name, tensor in tensors.items():
            if tensor is not None and id(tensor) not in copies:
                copies[id(tensor)] = tensor.clone()
            owner._buffers[name] = None if tensor is None else copies[id(tensor)]
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
    """Return the parameters that an optimizer of the stage updates, each once."""
    return [p for p in stage.parameters() if p.requires_grad]


Module = TypeVar("Module", bound=nn.Module)

_MARK = "_stays_in_evaluation"


def is_evaluating(model: nn.Module) -> bool:
    """Return whether a model is in evaluation mode as a whole, as one just loaded may be."""
    innermost = (each for each in model.modules() if not any(True for _ in each.children()))
    return not any(each.training for each in innermost)


def in_evaluation(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the modules that are in evaluation mode while others are in training mode.

    Somebody has put them there, frozen batch norms say.  One that :func:`is_evaluating` has none.
    """
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


class KeptTensors:
    """Some tensors of a module as they are now, and copies of those that may be edited.

    A forward edits weights that normalizes or clips them, or follows them with others: an
    embedding with ``max_norm``, a momentum encoder.  ``copied``: whether all are copied at once.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], copied: bool = False) -> None:
        self._data = {name: (tensor, tensor.data) for name, tensor in named if is_plain(tensor)}
        self._copies: dict[str, Tensor] = {}
        for name in self._data if copied else ():
            self.copy(name)

    def copy(self, name: str) -> None:
        """Copy one, the first time, if it is its numbers."""
        if name in self._data and name not in self._copies:
            self._copies[name] = self._data[name][1].clone()

    def rebound(self) -> list[str]:
        """Return the names of those whose ``.data`` is another tensor."""
        pairs = self._data.items()
        return [name for name, (one, data) in pairs if one.data_ptr() != data.data_ptr()]

    def edited(self) -> list[str]:
        """Return the names of those with a copy that have other numbers."""
        pairs = ((name, self._data[name][0].detach()) for name in self._copies)
        return [name for name, one in pairs if not _equal(one, self._copies[name])]

    def put_back(self) -> None:
        """Let all be as they were, in the same memory."""
        for name in self.rebound():
            self._data[name][0].data = self._data[name][1]
        for name, copy in self._copies.items():
            if not _equal(self._data[name][1], copy):
                self._data[name][1].copy_(copy)


@contextmanager
def weights_untouched(
    module: nn.Module, names: Collection[str] | None = None
) -> Iterator[KeptTensors]:
    """Put back what a forward has done to the weights, of these names, or to all."""
    named = (each for each in module.named_parameters() if names is None or each[0] in names)
    kept = KeptTensors(named, copied=True)
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


class OperatorMode(TorchDispatchMode):
    """Looks at every operator of PyTorch; none is entered while ``torch.compile`` traces."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        tensors = (each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor))
        self.look_at(func, tensors)
        return func(*args, **(kwargs or {}))

    def look_at(self, func: Callable[..., Any], tensors: Iterable[Tensor]) -> None:
        """Look at an operator that is about to run, and the tensors that it is given."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operator, and whoever compiles nothing, what keeps the compiler out."""
        return False


class WrittenTensors(OperatorMode):
    """Copies each tensor of a model, while it is entered, before the first operator edits it.

    Edits by what is no operator of PyTorch, a pointer handed to C say, are not seen.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        named = dict((*model.named_parameters(), *model.named_buffers()))
        self._kept, self._written = KeptTensors(named.items()), set[str]()
        self._places: dict[int, list[str]] = {}
        for name, tensor in named.items():
            self._places.setdefault(memory_of(tensor), []).append(name)
        self._places.pop(0, None)

    def sharing(self, tensor: Tensor) -> Sequence[str]:
        """Return the names of those that share a tensor's memory, as its views do."""
        return self._places.get(memory_of(tensor), ())

    def look_at(self, func: Callable[..., Any], tensors: Iterable[Tensor]) -> None:
        """Copy what an operator is about to edit."""
        if func._schema.is_mutable:  # type: ignore[attr-defined]
            for each in tensors:
                for name in self.sharing(each) if each.layout is torch.strided else ():
                    self._kept.copy(name)
                    self._written.add(name)

    def names(self) -> set[str]:
        """Return the names of tensors that were edited, or became others."""
        return self._written | {*self._kept.rebound()}

    def put_back(self) -> None:
        """Let all be as they were, in the same memory."""
        self._kept.put_back()


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is its numbers: neither sparse, nor of a class of its own."""
    if isinstance(tensor, UninitializedParameter) or type(tensor.data) is not Tensor:
        return False
    return tensor.layout is torch.strided and not tensor.is_quantized


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, be they of any type or no numbers at all."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    pair = [torch.view_as_real(each) if each.is_complex() else each for each in (one, other)]
    return torch.equal(*(each.view(_INTEGERS[each.itemsize]) for each in pair))
