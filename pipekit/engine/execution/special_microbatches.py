"""Microbatches that run otherwise: chunks of a sequence, and those without rows."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipekit.devices import CPU
from pipekit.engine.batches import Batch
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, StageRuntime, Target
from pipekit.engine.feed import Read
from pipekit.layers.sequence_chunks import ChunkedSequence, running
from pipekit.partition.probe import Probe
from pipekit.schedules import Op, Step
from pipekit.trees import Tree


def in_chunks(execute: Callable[[Step], None], chunks: int) -> Callable[[Step], None]:
    """Return what executes chunks: forwards from the first one on, backwards from the last."""
    sequences: defaultdict[tuple[int, int], ChunkedSequence] = defaultdict(ChunkedSequence)

    def run(step: Step) -> None:
        op, stage, microbatch, _ = step.task
        if op is Op.UPDATE:
            execute(step)
            return
        whole, chunk = divmod(microbatch, chunks)
        with running(sequences[stage, whole], chunk):
            execute(step)
        if op is Op.BACKWARD and chunk == 0:
            del sequences[stage, whole]

    return run


class PassingEmpty:
    """A stage through which empty microbatches pass: they add nothing to loss or gradients."""

    def __init__(self, stage: StageRuntime) -> None:
        self._stage, self.recompute = stage, stage.recompute
        self._empty = set[int]()

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        if isinstance(x.main, tuple) and not x.main:
            self._empty.add(step.task.microbatch)
            return StageIO(torch.zeros((), device=CPU) if target else (), {})
        return self._stage.forward(step, x, target)

    def run_again(self, step: Step) -> StageIO:
        if step.task.microbatch in self._empty:
            return StageIO((), {})
        return self._stage.run_again(step)

    def backward(self, step: Step, gradients: StageGradients | None) -> StageGradients:
        if step.task.microbatch in self._empty:
            return StageGradients({}, {})
        return self._stage.backward(step, gradients)

    def backward_weight(self, step: Step) -> None:
        if step.task.microbatch not in self._empty:
            self._stage.backward_weight(step)


def read_in_chunks(read: Read, chunks: int) -> Read:
    """Return what reads pairs of tensors [rows, tokens, ...] in chunks.

    Microbatch n is then chunk n % chunks of number n // chunks.
    """

    def cut(tensor: Tensor, microbatches: int) -> Tensor:
        rows, tokens, *rest = tensor.shape
        apart = tensor.reshape(microbatches, rows // microbatches, chunks, tokens // chunks, *rest)
        return apart.transpose(1, 2).reshape(rows * chunks, tokens // chunks, *rest)

    def read_cut(batch: Any, parts: int, number: int) -> Batch:
        microbatches = parts // chunks
        pair = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else ()
        sizes = {(*t.shape[:2],) for t in pair if isinstance(t, Tensor) and t.dim() > 1}
        if len(sizes) != 1 or not all(isinstance(t, Tensor) and t.dim() > 1 for t in pair):
            raise ValueError(
                f"batch {number} cannot be cut into chunks of its sequences: give a pair of "
                f"tensors [rows, tokens, ...], with the target of each token"
            )
        ((rows, tokens),) = sizes
        if rows % microbatches or tokens % chunks:
            raise ValueError(
                f"batch {number} has {rows} rows of {tokens} tokens, for {microbatches} "
                f"microbatches of {chunks} chunks: give multiples of both"
            )
        pieces = tuple(cut(tensor, microbatches) for tensor in pair)
        return read(pieces, parts, number)._replace(chunks=chunks)

    return read_cut


def require_same_in_chunks(first: Batch, chunks: int, evaluate: Callable[[Tree], Probe]) -> None:
    """Raise ValueError if the model's output for a sequence, evaluated, differs in chunks."""
    pieces, sequence = first.cut_input()[:chunks], ChunkedSequence()
    whole, apart = evaluate(torch.cat(pieces, dim=1)).output, []
    for chunk, piece in enumerate(pieces):
        with running(sequence, chunk):
            apart.append(evaluate(piece).output)
    joined, bound = torch.cat(apart, dim=1), torch.finfo(whole.dtype).eps ** 0.5
    if joined.shape != whole.shape or not torch.allclose(joined, whole, bound, bound):
        raise ValueError(
            f"the model's output for a sequence differs in {chunks} chunks: a layer reads tokens "
            f"beyond its chunk; let it call "
            f"pipekit.layers.sequence_chunks.with_earlier, or use a schedule of whole sequences"
        )
