"""What a stage holds in memory, measured: the tensors themselves are counted.

Activations are counted by autograd's own hooks, which see every tensor that a backward will need;
they are followed by weak references, so that they count until they are really gone.  Gradients of
activations and what operators use for a moment are not seen.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from pipekit.engine.versions import WeightVersions
from pipekit.trees import Tree, leaves


class Bytes(NamedTuple):
    """What is held at one moment; see :class:`pipekit.memory.Memory`."""

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
        versions: its weights, gradients and optimizer.
        changed: called after each gradient and each update that comes within a task.
    """

    def __init__(self, versions: WeightVersions, changed: Callable[[], None]) -> None:
        self._versions = versions
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: changed())
            for module in versions.modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        if versions.optimizer:
            self._hooks.append(versions.optimizer.register_step_post_hook(lambda *_: changed()))
        self._weights = {
            _storage(t): t.untyped_storage().nbytes()
            for module in versions.modules
            for t in [*module.parameters(), *module.buffers()]
        }
        self._weight_bytes = sum(self._weights.values())
        # By microbatch: what its first forward keeps, and what its second one does.
        self._first: dict[int, dict[StorageWeakRef, int]] = {}
        self._second: dict[int, dict[StorageWeakRef, int]] = {}

    def follow(self, microbatch: int, again: bool = False) -> saved_tensors_hooks:
        """Return a context in which a forward of ``microbatch`` runs."""
        kept = (self._second if again else self._first).setdefault(microbatch, {})

        def pack(tensor: Tensor) -> Tensor:
            storage = _storage(tensor)
            if storage not in self._weights and storage not in self._first[microbatch]:
                kept[storage] = tensor.untyped_storage().nbytes()
            return tensor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    def keep(self, microbatch: int, tree: Tree, again: bool = False) -> None:
        """Count a structure that stays until the backward: a stage's input or output."""
        kept = (self._second if again else self._first).setdefault(microbatch, {})
        for tensor in leaves(tree):
            # A microbatch is a view of its batch: only its own rows count.
            kept.setdefault(_storage(tensor), tensor.nbytes)

    def drop(self, microbatch: int) -> None:
        """Count a microbatch no more: its backward is done."""
        self._first.pop(microbatch, None)
        self._second.pop(microbatch, None)

    def stop(self) -> None:
        """Follow no more."""
        for hook in self._hooks:
            hook.remove()

    def now(self) -> Bytes:
        """Return what is held."""
        optimizer = self._versions.optimizer
        state = optimizer.state.values() if optimizer else ()
        return Bytes(
            self._weight_bytes,
            sum(t.nbytes for t in self._versions.all_gradients()),
            sum(v.nbytes for entry in state for v in entry.values() if isinstance(v, Tensor)),
            _alive(self._first.values()),
            _alive(self._second.values()),
        )


def _alive(kept: Iterable[dict[StorageWeakRef, int]]) -> int:
    return sum(n for storages in kept for s, n in storages.items() if not s.expired())


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
