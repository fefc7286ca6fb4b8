"""Which layer made which memory, and which of it lives until a backward."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class _Made(NamedTuple):
    layer: int
    size: int


class Storages:
    """Counts each storage once, in the layer that made it, whatever views and layers save of it.

    Call :meth:`pack` for every tensor saved, and :meth:`end_layer` after each layer's forward,
    while its graph is alive.  A weak reference keeps a storage's identity, not its memory: no later
    one is taken for it.

    Args:
        apart: tensors that do not count, because they are there anyway: parameters, buffers and the
            model's input.

    Attributes:
        saved_bytes: by layer, bytes of what it made that a backward needs.
    """

    def __init__(self, apart: Iterable[Tensor]) -> None:
        self._apart = {storage_of(t) for t in apart}
        self._made: dict[StorageWeakRef, _Made] = {}
        self._packed: dict[StorageWeakRef, int] = {}
        self._needed: set[StorageWeakRef] = set()
        self.saved_bytes: Counter[int] = Counter()

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd saves; a pack hook of ``saved_tensors_hooks``."""
        self._packed[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def end_layer(self, number: int, outputs: Iterable[Tensor]) -> None:
        """Say that layer ``number`` has run, and what it passes on."""
        for storage, size in self._packed.items():
            # A part of the graph that leads to no output is gone by now, with what it saved.
            if storage not in self._apart and not storage.expired():
                made = self._made.setdefault(storage, _Made(number, size))
                if storage not in self._needed:
                    self._needed.add(storage)
                    self.saved_bytes[made.layer] += made.size
        self._packed.clear()
        for tensor in outputs:
            made = _Made(number, tensor.untyped_storage().nbytes())
            self._made.setdefault(storage_of(tensor), made)

    def live_on(self, storages: Iterable[StorageWeakRef]) -> bool:
        """Return whether all of them live until a backward, or are there anyway."""
        return all(storage in self._needed or storage in self._apart for storage in storages)


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """Return a weak reference to a tensor's memory."""
    return StorageWeakRef(tensor.untyped_storage())
