"""What autograd saves for a backward, seen by several that look at once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

T = TypeVar("T")


class _Around(threading.local):
    pack: Callable[[Tensor], object] | None = None


_around = _Around()


@contextmanager
def saving(pack: Callable[[Tensor], T], unpack: Callable[[T], Tensor]) -> Iterator[None]:
    """As torch's ``saved_tensors_hooks``, of which only the innermost act: here all see a tensor.

    What autograd keeps is the innermost ``pack``'s; those around it may only look.
    """
    before = _around.pack

    def packed(tensor: Tensor) -> T:
        if before is not None:
            before(tensor)
        return pack(tensor)

    _around.pack = packed
    try:
        with saved_tensors_hooks(packed, unpack):
            yield
    finally:
        _around.pack = before
