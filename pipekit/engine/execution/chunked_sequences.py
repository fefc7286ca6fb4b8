"""Runs a microbatch's sequence in chunks, which hand on keys and values on the same stage."""

from collections import defaultdict
from collections.abc import Callable

from pipekit.layers.sequence_chunks import ChunkedSequence, running
from pipekit.schedules import Op, Step


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
