"""Whose numbers a tensor has: views of a weight, and its ``.data``, share its memory."""

from collections import defaultdict

from torch import Tensor, nn


class Storages:
    """The memory of a model's parameters and buffers.

    Args:
        model: which names them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[int, set[str]] = defaultdict(set)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if (place := _place(tensor)) is not None:
                self._names[place].add(name)

    def names(self, tensor: Tensor) -> set[str]:
        """Return the parameters and buffers that share a tensor's memory, by name."""
        place = _place(tensor)
        return set() if place is None else self._names.get(place, set())


def _place(tensor: Tensor) -> int | None:
    """Return which memory a tensor has; None: none that others could share."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # of sparse tensors and of some subclasses
        return None
