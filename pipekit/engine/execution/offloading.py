"""Moves a microbatch's activations to the host or to a partner, and back before its backward.

Autograd's saved tensors are behind handles, out of which they are taken and into which they are put
back, as are the stage's input and output, a storage at a time; weights stay (PipeOffload, Wan et
al., arXiv 2503.01328, section 3; BPipe, Kim et al., ICML 2023, section 3).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from weakref import WeakSet

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from pipekit.devices import CPU, Event, Mover, keep_for_current_stream, wait_event
from pipekit.engine.arguments import offloads
from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer
from pipekit.layers.saved_tensors import saving
from pipekit.schedules import Step

_ALIGNED = 16  # bytes at which a tensor of any type may begin


class Held:
    """A tensor that a backward needs: one that autograd has saved, or a stage's input or output.

    Its place in autograd's graph stays while it holds nothing.
    """

    def __init__(self, tensor: Tensor, saved: bool) -> None:
        self.tensor = tensor.detach() if saved else tensor
        self._version = tensor._version if saved else None

    @property
    def bytes(self) -> range:
        """Its place in its storage."""
        t = self.tensor
        begin = int(t.storage_offset()) * t.itemsize
        last = sum((n - 1) * step for n, step in zip(t.size(), t.stride(), strict=True))
        return range(begin, begin + (1 + last) * t.itemsize)

    def take(self, begin: int) -> None:
        """Hold nothing; the bytes of the storage from ``begin`` on are kept elsewhere."""
        t = self.tensor
        if self._version not in (None, t._version):
            raise RuntimeError(
                f"a tensor of size {[*t.shape]} that the backward needs was edited in place after "
                f"it had been saved: let the layer that edits it return a new one"
            )
        self._offset, self._size, self._stride = self.bytes.start - begin, t.size(), t.stride()
        t.data = t.data.new_empty(0)

    def put(self, memory: Tensor) -> None:
        """Hold it again, as a view of a copy of these bytes."""
        dtype = self.tensor.dtype
        offset = (memory.storage_offset() + self._offset) // dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=memory.device)
        self.tensor.data = empty.set_(memory.untyped_storage(), offset, self._size, self._stride)


class MovedTensors:
    """The tensors of one microbatch that move, together where they share a storage."""

    def __init__(self, holders: Iterable[Held], stay: set[StorageWeakRef], mover: Mover) -> None:
        self._mover = mover
        shared: dict[StorageWeakRef, list[Held]] = defaultdict(list)
        for holder in holders:
            storage = StorageWeakRef(holder.tensor.untyped_storage())
            t = holder.tensor
            # A view of its storage and nothing more.
            plain = t.layout is torch.strided and not (t.is_conj() or t.is_neg() or t.is_quantized)
            if storage not in stay and plain and t.numel() and t.device == mover.device:
                shared[storage].append(holder)
        self._groups = [*shared.values()]
        self.memory: list[tuple[Tensor, Event]] = []  # where they are, and what ends their move

    def leave(self, target: torch.device) -> list[Tensor]:
        """Start the move to a device; return the memory that is left, uint8 [bytes] each."""
        left = []
        for holders in self._groups:
            storage, places = holders[0].tensor.untyped_storage(), [each.bytes for each in holders]
            begin = min(place.start for place in places) // _ALIGNED * _ALIGNED
            end = max(place.stop for place in places)
            row = torch.empty(0, dtype=torch.uint8, device=self._mover.device)
            left.append(row.set_(storage, begin, (end - begin,), (1,)))
            for holder in holders:
                holder.take(begin)
        self.memory = [self._mover.away(row, target) for row in left]
        return left

    def come_back(self) -> list[Tensor]:
        """Start the move back; return the memory that it takes, uint8 [bytes] each."""
        self.memory = [self._mover.back(row) for row, _ in self.memory]
        for (row, _), holders in zip(self.memory, self._groups, strict=True):
            for holder in holders:
                holder.put(row)
        return [row for row, _ in self.memory]

    def arrive(self) -> None:
        """Let the device wait until all is back."""
        for row, event in self.memory:
            wait_event(self._mover.device, event)
            keep_for_current_stream(row)


Execute = Callable[[Step], None]


class OffloadingStage:
    """A stage from which a microbatch's activations can be taken, and given back."""

    def __init__(self, stage: Stage, mover: Mover) -> None:
        self._stage, self.mover = stage, mover
        self.backward_weight, self.recompute = stage.backward_weight, stage.recompute
        self._saved: dict[int, WeakSet[Held]] = {}
        self.moved: dict[int, MovedTensors] = {}  # by microbatch

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        with self._holding(step.task.microbatch):
            return self._stage.forward(step, x, target)

    def run_again(self, step: Step) -> StageIO:
        self._await(step.task.microbatch)
        with self._holding(step.task.microbatch):
            return self._stage.run_again(step)

    def backward(self, step: Step, gradients: StageGradients | None) -> StageGradients:
        self._await(step.task.microbatch)
        return self._stage.backward(step, gradients)

    def offload(self, microbatch: int, target: torch.device) -> list[Tensor]:
        """Move what a microbatch keeps to a device; return the memory that is left, a row each."""
        weights = self._stage.weights.modules
        waiting, of_batch = self._stage.passes.waiting(microbatch)
        fixed = [t for m in weights for t in (*m.parameters(), *m.buffers())] + of_batch
        stay = {StorageWeakRef(tensor.untyped_storage()) for tensor in fixed}
        holders = [*self._saved.pop(microbatch, ())]
        holders += [Held(tensor, saved=False) for tensor in waiting]
        moved = self.moved[microbatch] = MovedTensors(holders, stay, self.mover)
        return moved.leave(target)

    def _holding(self, microbatch: int) -> AbstractContextManager[None]:
        held = self._saved[microbatch] = WeakSet[Held]()

        def pack(tensor: Tensor) -> Held:
            held.add(saved := Held(tensor, saved=True))
            return saved

        return saving(pack, lambda saved: saved.tensor)

    def _await(self, microbatch: int) -> None:
        """Let the device wait for what comes back, and forget what needs no moving any more."""
        self._saved.pop(microbatch, None)
        if moved := self.moved.pop(microbatch, None):
            moved.arrive()


def offloading(
    execute: Execute,
    stages: Mapping[int, OffloadingStage],
    assignment: WorkerAssignment,
    observer: Observer,
) -> Execute:
    """Return what executes a step, and moves activations where the table has it."""

    def run(step: Step) -> None:
        op, number, microbatch, _ = step.task
        if not offloads(op):
            execute(step)
            return
        stage, mover = stages[number], stages[number].mover
        target = CPU if op.peer is None else assignment.devices[op.peer]
        left = () if op.leaves else (event for _, event in stage.moved[microbatch].memory)
        with mover.leaving() if op.leaves else mover.returning(left):
            observer.before_move(assignment.index, step)
            if op.leaves:
                memory = stage.offload(microbatch, target)
            else:
                memory = stage.moved[microbatch].come_back()
            observer.moved(assignment.index, step, memory)

    return run
