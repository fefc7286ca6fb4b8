"""Tensors of a model that its forwards edit: found, compared and put back."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipekit.trees import is_plain, tensors_in


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
        self.look_at(func, tensors_in((args, kwargs)))
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
        if func._schema.is_mutable:  # type: ignore[attr-defined]
            for each in tensors:
                for name in self.sharing(each) if each.layout is torch.strided else ():
                    self._kept.copy(name)
                    self._written.add(name)

    def names(self) -> set[str]:
        """Return the names of tensors that were edited, or became others."""
        return self._written | {*self._kept.rebound()}

    def put_back(self) -> None:
        self._kept.put_back()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, be they of any type or no numbers at all."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    pair = [torch.view_as_real(each) if each.is_complex() else each for each in (one, other)]
    return torch.equal(*(each.view(_INTEGERS[each.itemsize]) for each in pair))
