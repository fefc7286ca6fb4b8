"""What a stage holds in memory, measured: the tensors themselves are counted.

Activations are counted by autograd's own hooks, which see every tensor that a backward will need,
until their storage is really freed.  Gradients of activations and what operators use for a moment
are not seen.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol
from weakref import finalize

from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from pipekit.trees import Tree, leaves


class Weights(Protocol):
    """The weights of a stage, in one version or several."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The layers, once for each version."""

    @property
    def parameters(self) -> Sequence[Sequence[Tensor]]:
        """The tensors that gradients come to, for each version."""

    @property
    def optimizer(self) -> Optimizer | None:
        """What updates them, if it is known."""

    def all_gradients(self) -> Iterable[Tensor]:
        """Return every gradient that is in memory."""


class Bytes(NamedTuple):
    """What is held at one moment; see :class:`pipekit.traces.memory.Memory`."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    recompute: int

    def __add__(self, other: "Bytes") -> "Bytes":  # type: ignore[override]
        """Return what both hold."""
        return Bytes(*map(sum, zip(self, other, strict=True)))


NOTHING = Bytes(0, 0, 0, 0, 0)


class Held:
    """Follows the tensors of one stage.

    Args:
        weights: its weights, gradients and optimizer.
        changed: called whenever something has come or gone.
    """

    def __init__(self, weights: Weights, changed: Callable[[], None]) -> None:
        self._weights, self._changed = weights, changed
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: changed())
            for parameter in chain(*weights.parameters)
        ]
        self._optimizer_bytes = 0
        if weights.optimizer:
            self._optimizer_bytes = _state_bytes(weights.optimizer)
            self._hooks.append(weights.optimizer.register_step_post_hook(self._stepped))
        self._weight_storages = {
            StorageWeakRef(t.untyped_storage()): t.untyped_storage().nbytes()
            for module in weights.modules
            for t in [*module.parameters(), *module.buffers()]
        }
        self._weight_bytes = sum(self._weight_storages.values())
        # By microbatch: what its first forward keeps, and what its second one does.
        self._first: defaultdict[int, _Storages] = defaultdict(dict)
        self._second: defaultdict[int, _Storages] = defaultdict(dict)

    def follow(self, microbatch: int, again: bool = False) -> saved_tensors_hooks:
        """Return a context in which a forward of ``microbatch`` runs."""

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            self._count(microbatch, again, storage, storage.nbytes())
            return tensor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    def keep(self, microbatch: int, tree: Tree, again: bool = False) -> None:
        """Count a structure that stays until the backward: a stage's input or output."""
        for tensor in leaves(tree):
            # A microbatch is a view of its batch: only its own rows count.
            self._count(microbatch, again, tensor.untyped_storage(), tensor.nbytes)
        self._changed()

    def drop(self, microbatch: int) -> None:
        """Count a microbatch no more: its backward is done."""
        self._first.pop(microbatch, None)
        self._second.pop(microbatch, None)
        self._changed()

    def stop(self) -> None:
        """Follow no more."""
        for hook in self._hooks:
            hook.remove()

    def now(self) -> Bytes:
        """Return what is held."""
        return Bytes(
            self._weight_bytes,
            sum(gradient.nbytes for gradient in self._weights.all_gradients()),
            self._optimizer_bytes,
            _total(self._first.values()),
            _total(self._second.values()),
        )

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self._optimizer_bytes = _state_bytes(optimizer)
        self._changed()

    def _count(self, microbatch: int, again: bool, storage: UntypedStorage, size: int) -> None:
        """Count a storage until it is freed, unless it is a weight or is counted already."""
        key, first = StorageWeakRef(storage), self._first[microbatch]
        kept = self._second[microbatch] if again else first
        if key not in self._weight_storages and key not in first and key not in kept:
            kept[key] = size
            finalize(storage, kept.pop, key, None)


_Storages = dict[StorageWeakRef, int]
"""The bytes of each; a reference keeps the storage's place from being taken by another."""


def _state_bytes(optimizer: Optimizer) -> int:
    entries = optimizer.state.values()
    return sum(t.nbytes for entry in entries for t in entry.values() if isinstance(t, Tensor))


def _total(kept: Iterable[_Storages]) -> int:
    return sum(sum(storages.values()) for storages in kept)
