"""Microbatches without rows, of a batch with fewer rows than microbatches."""

from collections.abc import Callable, Container
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

import torch

from pipekit.engine.execution.pipeline_io import (
    StageGradients,
    StageIO,
    StageRuntime,
    Target,
)

P = ParamSpec("P")
T = TypeVar("T")


class PassingEmpty:
    """A stage through which empty microbatches pass: they add nothing to loss or gradients."""

    def __init__(self, stage: StageRuntime) -> None:
        self._stage, self.infer = stage, stage.infer
        self._empty = empty = set[int]()
        no_gradients = partial(StageGradients, {}, {})
        self.recompute = _unless_empty(empty, stage.recompute, partial(StageIO, (), {}))
        self.backward = _unless_empty(empty, stage.backward, no_gradients)
        self.backward_weight = _unless_empty(empty, stage.backward_weight, lambda: None)

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        if isinstance(x.main, tuple) and not x.main:
            self._empty.add(microbatch)
            return StageIO(torch.zeros(()) if target else (), {})
        return self._stage.forward(x, microbatch, slot, target, recompute)


def _unless_empty(
    empty: Container[int], run: Callable[Concatenate[int, P], T], nothing: Callable[[], T]
) -> Callable[Concatenate[int, P], T]:
    def passing(microbatch: int, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return nothing() if microbatch in empty else run(microbatch, *args, **kwargs)

    return passing
