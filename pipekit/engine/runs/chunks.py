"""Batches whose sequences are cut into chunks, each of them a microbatch of its own."""

from typing import Any

from torch import Tensor

from pipekit.engine.batches import Batch
from pipekit.engine.runs.batch_source import Read


def read_in_chunks(read: Read, chunks: int) -> Read:
    """Return what reads batches whose microbatch n is chunk n % chunks of number n // chunks.

    A batch is a pair of tensors [rows, tokens, ...].

    Raises:
        ValueError: it is another one, or cannot be cut evenly.
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
        return read(tuple(cut(tensor, microbatches) for tensor in pair), parts, number)

    return read_cut
