"""Moves a microbatch's activations to the host or to a partner, and back before its backward.

Autograd's saved tensors are behind handles, out of which they are taken and into which they are put
back, as are the stage's input and output; weights stay (PipeOffload, Wan et al., arXiv 2503.01328,
section 3; BPipe, Kim et al., ICML 2023, section 3).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from pipekit.devices import CPU, Mover
from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.execution.moved_tensors import MovedTensors, Saved, Waiting, storages
from pipekit.engine.execution.pipeline_io import (
    StageGradients,
    StageIO,
    StageRuntime,
    Target,
)
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer, listeners
from pipekit.engine.runnable import loads, offloads
from pipekit.layers.saved_tensors import saving
from pipekit.schedules import Step

Execute = Callable[[Step], None]


class OffloadingStage:
    """A stage from which a microbatch's activations can be taken, and given back."""

    def __init__(self, stage: StageRuntime, trained: Stage, mover: Mover) -> None:
        self._stage, self._trained, self._mover = stage, trained, mover
        self.infer, self.backward_weight = stage.infer, stage.backward_weight
        self._saved: dict[int, WeakSet[Saved]] = {}
        self._moved: dict[int, MovedTensors] = {}

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        with self._holding(microbatch):
            return self._stage.forward(x, microbatch, slot, target, recompute)

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        self._await(microbatch)
        with self._holding(microbatch):
            return self._stage.recompute(microbatch, slot)

    def backward(self, microbatch: int, *about: Any) -> StageGradients:
        self._await(microbatch)
        return self._stage.backward(microbatch, *about)

    def moving(self, microbatch: int, leaves: bool) -> AbstractContextManager[None]:
        """Have this thread's work go to the stream in which a microbatch's tensors move."""
        if leaves:
            return self._mover.leaving()
        return self._mover.returning(self._moved[microbatch].moves)

    def offload(self, microbatch: int, target: torch.device) -> list[Tensor]:
        """Move what a microbatch keeps to a device; return the memory that is left, a row each."""
        weights = self._trained.weights.modules
        waiting, of_batch = self._trained.waiting(microbatch)
        stay = storages(t for m in weights for t in (*m.parameters(), *m.buffers()))
        stay |= storages(of_batch)
        holders = [*self._saved.pop(microbatch, ()), *map(Waiting, waiting)]
        moved = self._moved[microbatch] = MovedTensors(holders, stay, self._mover)
        return moved.leave(target)

    def load(self, microbatch: int) -> list[Tensor]:
        """Begin to bring it back; return the memory that it takes, a row each."""
        return self._moved[microbatch].come_back()

    def _holding(self, microbatch: int) -> AbstractContextManager[None]:
        held = self._saved[microbatch] = WeakSet[Saved]()

        def pack(tensor: Tensor) -> Saved:
            held.add(saved := Saved(tensor))
            return saved

        return saving(pack, lambda saved: saved.tensor)

    def _await(self, microbatch: int) -> None:
        """Let the device wait for what comes back, and forget what needs no moving any more."""
        self._saved.pop(microbatch, None)
        if moved := self._moved.pop(microbatch, None):
            moved.arrive()


def offloading(
    execute: Execute,
    stages: Mapping[int, OffloadingStage],
    assignment: WorkerAssignment,
    first_microbatch: int,
    observers: Sequence[Observer],
) -> Execute:
    """Return what executes a step, and moves activations where the table has it."""
    begin = listeners(observers, Observer.before_move, assignment.index)
    tell = listeners(observers, Observer.moved, assignment.index)

    def run(step: Step) -> None:
        op, number, microbatch, _ = step.task
        if not (offloads(op) or loads(op)):
            execute(step)
            return
        stage, microbatch = stages[number], microbatch + first_microbatch
        target = CPU if op.peer is None else assignment.devices[op.peer]
        with stage.moving(microbatch, op.leaves):
            for each in begin:
                each(step)
            moved = stage.offload(microbatch, target) if op.leaves else stage.load(microbatch)
            for each in tell:
                each(step, moved)

    return run
