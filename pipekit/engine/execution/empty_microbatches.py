"""Microbatches without rows, of a batch with fewer rows than microbatches."""

import torch

from pipekit.engine.execution.executor import StageRuntime
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target


class PassingEmpty:
    """A stage through which empty microbatches pass: they add nothing to loss or gradients."""

    def __init__(self, stage: StageRuntime) -> None:
        self._stage, self.infer = stage, stage.infer
        self._empty: set[int] = set()

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        if isinstance(x.main, tuple) and not x.main:
            self._empty.add(microbatch)
            return StageIO(torch.zeros(()) if target else (), {})
        return self._stage.forward(x, microbatch, slot, target, recompute)

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        if microbatch in self._empty:
            return StageIO((), {})
        return self._stage.recompute(microbatch, slot)

    def backward(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        if microbatch in self._empty:
            return StageGradients({}, {})
        return self._stage.backward(microbatch, slot, update, gradients)

    def backward_input(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        if microbatch in self._empty:
            return StageGradients({}, {})
        return self._stage.backward_input(microbatch, slot, update, gradients)

    def backward_weight(self, microbatch: int, slot: int, update: int) -> None:
        if microbatch not in self._empty:
            self._stage.backward_weight(microbatch, slot, update)
