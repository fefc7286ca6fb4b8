"""The weights of modules that run to be looked at: put back, should their forward edit them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter


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
    """Put back what a forward has done to the weights.

    Yields:
        The weights as they were.
    """
    kept = KeptWeights(module)
    try:
        yield kept
    finally:
        kept.put_back()


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is its numbers: neither sparse, nor of a class of its own."""
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, be they of any type or no numbers at all."""
    pair = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return one.shape == other.shape and torch.equal(*pair)
