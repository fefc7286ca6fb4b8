"""Microbatches whose sequences are cut into chunks: shorter passes, and so a shorter bubble.

A chunk attends to those before it, so that a stage runs the chunks of a microbatch forward in order
and backward in the reverse one.  With a causal model later chunks take longer:
``Costs(profile, chunks=...)`` says by how much.
"""

from collections.abc import Iterator
from dataclasses import replace

from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.methods.one_f_one_b import alternate
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule


def seq1f1b(stages: int, microbatches: int, *, chunks: int) -> Schedule:
    """Return Seq1F1B's schedule: one forward, one backward, of chunks of sequences.

    Worker ``w`` (from 0) of ``p`` runs ``p - 2 - w + chunks`` forwards before it alternates: what
    1F1B admits, and so many more that the last worker has all of a microbatch when its first
    backward begins, which is that of the last chunk (Sun et al., Seq1F1B, arXiv 2406.03488;
    ``num_warmup`` in github.com/sail-sg/zero-bubble-pipeline-parallelism).  So ``p - 1 - w +
    chunks`` chunks are in flight, each with a part of a microbatch's activations, where 1F1B has
    ``p - w`` microbatches.

    Args:
        stages, microbatches: how many stages, one worker each, and microbatches a batch.
        chunks: of each microbatch.
    """
    return _chunked("Seq1F1B", stages, microbatches, chunks, chunks)


def terapipe(stages: int, microbatches: int, *, chunks: int) -> Schedule:
    """Return TeraPipe's schedule: all chunks forward, then all backward, one update.

    It is GPipe's, with chunks of sequences in place of microbatches (Li et al., TeraPipe, ICML
    2021, arXiv 2102.07988).  How long each chunk is, there a search decides; here the costs say it.

    Args:
        stages, microbatches: how many stages, one worker each, and microbatches a batch.
        chunks: of each microbatch.
    """
    return _chunked("TeraPipe", stages, microbatches, chunks, chunks * microbatches)


def _chunked(name: str, stages: int, microbatches: int, chunks: int, ahead: int) -> Schedule:
    """Return batches in which the last worker has so many chunks in flight, and others more."""
    require_positive(stages=stages, microbatches=microbatches, chunks=chunks)

    def passes(worker: int) -> Iterator[Pass]:
        for op, n in alternate(range(microbatches * chunks), stages - 1 - worker + ahead):
            first = n - n % chunks  # of the microbatch
            yield op, worker, n if op is Op.FORWARD else 2 * first + chunks - 1 - n

    return replace(flushed(name, map(passes, range(stages))), chunks=chunks)
