"""Tensors that layers hand on in Python, past what they return: no stage sends those."""

from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakTensorKeyDictionary

from pipekit.layers.module_state import OperatorMode


class HandedOn(OperatorMode):
    """Finds layers that read a tensor of another layer which they are not given.

    Meant are tensors that depend on the model's input: what else a layer keeps in a shared object,
    a table of positions, each stage makes for itself.

    Attributes:
        found: pairs of layers, the one that made a tensor and the one that read it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, int]] = set()
        self._layer = 0
        self._owners = WeakTensorKeyDictionary()

    def begin(self, layer: int, given: Iterable[Tensor]) -> None:
        """Begin a layer's forward with the tensors that it is given."""
        self._layer = layer
        self._owners.update(dict.fromkeys(given, layer))

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        owners = {self._owners[each] for each in tensors if each in self._owners}
        self.found |= {(owner, self._layer) for owner in owners if owner != self._layer}
        result = func(*args, **(kwargs or {}))
        name = func._schema.name  # type: ignore[attr-defined]
        if owners and not ("::new_" in name or name.endswith("_like")):
            made = (each for each in tree_iter(result) if isinstance(each, Tensor))
            self._owners.update(dict.fromkeys(made, self._layer))
        return result


def require_handed_on_within(balance: Sequence[int], pairs: Collection[tuple[int, int]]) -> None:
    """Raise ValueError if a layer reads a tensor that one in another stage has left in Python."""
    ends = [*accumulate(balance)]
    for source, reader in sorted(pairs):
        stages = bisect(ends, source), bisect(ends, reader)
        if stages[0] != stages[1]:
            raise ValueError(
                f"layer {reader} reads a tensor that layer {source} has left in Python, in a "
                f"dict, list or attribute that they share, and they are in stages {stages[1]} and "
                f"{stages[0]}, between which goes only what layers return: choose a balance that "
                f"keeps them in one stage, return the tensor from layer to layer, or stash and pop "
                f"it (pipekit.layers.skips)"
            )
