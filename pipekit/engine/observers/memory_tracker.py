"""What a worker holds in memory, measured: the tensors themselves are counted.

Autograd's hooks see every tensor that a backward will need, until its storage is freed.  Gradients
of activations and what operators use for a moment are not seen.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, NamedTuple
from weakref import finalize

from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from pipekit.engine.observers.observer import Observer, StageWeights, WorkerView
from pipekit.layers.saved_tensors import saving
from pipekit.plans import Recompute
from pipekit.schedules import Op, Step
from pipekit.traces import RECOMPUTE
from pipekit.trees import Tree, tensors_in


class HeldBytes(NamedTuple):
    """What is held at one moment; see :class:`pipekit.traces.memory.Memory`."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    recompute: int


NOTHING = HeldBytes(0, 0, 0, 0, 0)


class StageMemory:
    """Follows the tensors of one stage."""

    def __init__(self, weights: StageWeights, changed: Callable[[], None]) -> None:
        self._weights, self._changed = weights, changed
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: changed())
            for parameter in chain(*weights.parameters)
        ]
        self._optimizer_bytes = 0  # they change with a step alone
        if weights.optimizer:
            self._optimizer_bytes = _state_bytes(weights.optimizer)
            self._hooks.append(weights.optimizer.register_step_post_hook(self._stepped))
        self._weight_storages = {
            StorageWeakRef(t.untyped_storage()): t.untyped_storage().nbytes()
            for module in weights.modules
            for t in [*module.parameters(), *module.buffers()]
        }
        self._weight_bytes = sum(self._weight_storages.values())
        # What a microbatch's first forward keeps, and what its second one does (True).
        self._kept: defaultdict[tuple[int, bool], _Storages] = defaultdict(dict)

    def follow(self, microbatch: int, again: bool = False) -> AbstractContextManager[None]:
        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            self._count(microbatch, again, storage, storage.nbytes())
            return tensor

        return saving(pack, lambda tensor: tensor)

    def keep(self, microbatch: int, tree: Tree, again: bool = False) -> None:
        """Count a structure that stays until the backward: a stage's input or output."""
        for tensor in tensors_in(tree):
            # A microbatch is a view of its batch: only its own rows count.
            self._count(microbatch, again, tensor.untyped_storage(), tensor.nbytes)
        self._changed()

    def leave(self, microbatch: int, memory: Iterable[Tensor]) -> None:
        """Count no more what a microbatch no longer keeps here."""
        for row in memory:
            for again in (False, True):
                self._kept[microbatch, again].pop(StorageWeakRef(row.untyped_storage()), None)
        self._changed()

    def drop(self, microbatch: int) -> None:
        """Count a microbatch no more: its backward is done."""
        for again in (False, True):
            self._kept.pop((microbatch, again), None)
        self._changed()

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def now(self) -> HeldBytes:
        gradients = sum(gradient.nbytes for gradient in self._weights.all_gradients())
        activations = [0, 0]
        for (_, again), kept in self._kept.items():
            activations[again] += sum(kept.values())
        optimizer = self._optimizer_bytes + self._weights.kept_bytes
        return HeldBytes(self._weight_bytes, gradients, optimizer, *activations)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self._optimizer_bytes = _state_bytes(optimizer)
        self._changed()

    def _count(self, microbatch: int, again: bool, storage: UntypedStorage, size: int) -> None:
        """Count a storage until it is freed, unless it is a weight or is counted already."""
        key, first = StorageWeakRef(storage), self._kept[microbatch, False]
        kept = self._kept[microbatch, again]
        if key not in self._weight_storages and key not in first and key not in kept:
            kept[key] = size
            finalize(storage, kept.pop, key, None)


class MemoryTracker(Observer):
    """Follows what one worker holds, of all its stages."""

    def __init__(self, recompute: Mapping[int, Recompute]) -> None:
        self._recompute = recompute
        self._stages: dict[int, StageMemory] = {}
        self._following: AbstractContextManager[None] | None = None
        self._waiting_bytes: Callable[[], int] = int
        # After every change when (``time.perf_counter()``) and what was held.
        self.samples: list[tuple[float, HeldBytes]] = []
        # When a partner began to hold more of its activations, or less; which; the bytes.
        self.lent: list[tuple[float, int, int]] = []

    def begin(self, worker: WorkerView) -> None:
        self._waiting_bytes = worker.waiting_bytes
        for index, weights in worker.weights.items():
            if index not in self._stages:
                self._stages[index] = StageMemory(weights, self._look)
        self._look()

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        op, index, microbatch, _ = step.task
        stage, again = self._stages[index], activity == RECOMPUTE
        if op is Op.FORWARD:
            stage.keep(microbatch, inputs)
        if again or (op is Op.FORWARD and not step.recomputed(self._recompute[index])):
            self._following = stage.follow(microbatch, again)
            self._following.__enter__()

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        op, index, microbatch, _ = step.task
        stage = self._stages[index]
        if self._following:
            self._unfollow()
            stage.keep(microbatch, outputs, again=activity == RECOMPUTE)
        elif op.adds_gradient:
            stage.drop(microbatch)
        elif op is Op.UPDATE:
            self._look()

    def moved(self, worker: int, step: Step, memory: Sequence[Tensor]) -> None:
        op, index, microbatch, _ = step.task
        stage = self._stages[index]
        if op.leaves:
            stage.leave(microbatch, memory)
        else:
            stage.keep(microbatch, (*memory,))
        if op.peer is not None:
            size = sum(row.nbytes for row in memory)
            when = time.perf_counter()
            self.lent.append((when, op.peer, size if op.leaves else -size))

    def held_bytes(self) -> int:
        return sum(self.samples[-1][1])

    def close(self, worker: int) -> None:
        self._unfollow()
        for stage in self._stages.values():
            stage.stop()

    def _unfollow(self) -> None:
        if self._following:
            self._following.__exit__(None, None, None)
            self._following = None

    def _look(self) -> None:
        waiting = NOTHING._replace(gradients=self._waiting_bytes())
        parts = zip(waiting, *(stage.now() for stage in self._stages.values()), strict=True)
        self.samples.append((time.perf_counter(), HeldBytes(*map(sum, parts))))


_Storages = dict[StorageWeakRef, int]
"""The bytes of each; a reference keeps the storage's place from being taken by another."""


def _state_bytes(optimizer: Optimizer) -> int:
    entries = optimizer.state.values()
    return sum(t.nbytes for entry in entries for t in entry.values() if isinstance(t, Tensor))
