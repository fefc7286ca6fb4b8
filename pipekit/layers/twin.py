"""Copies of layers that have tensors in common with them."""

import copy
from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def twin(module: Module, shared: Iterable[Tensor]) -> Module:
    """Return a copy of a module with the same buffers, whoever of the two may replace them.

    Args:
        module: any.
        shared: what else they have in common; of other parameters the copy has its own.
    """
    common = {id(tensor): tensor for tensor in (*module.buffers(), *shared)}
    copied = copy.deepcopy(module, common)
    for one, original in zip(copied.modules(), module.modules(), strict=True):
        one._buffers = original._buffers
    return copied
