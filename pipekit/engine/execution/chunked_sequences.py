"""Runs a microbatch's sequence in chunks, which hand on keys and values on the same stage."""

from collections import defaultdict
from contextlib import AbstractContextManager

from pipekit.engine.execution.executor import StageRuntime
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target
from pipekit.layers.sequence_chunks import ChunkedSequence, running


class ChunkStage:
    """A stage that runs chunks: forwards from the first one on, backwards from the last."""

    def __init__(self, stage: StageRuntime, chunks: int) -> None:
        self._stage, self._chunks = stage, chunks
        self.infer = stage.infer
        self.backward_input, self.backward_weight = stage.backward_input, stage.backward_weight
        self._sequences: defaultdict[int, ChunkedSequence] = defaultdict(ChunkedSequence)

    def forward(
        self, x: StageIO, microbatch: int, slot: int, target: Target | None, recompute: bool
    ) -> StageIO:
        with self._running(microbatch):
            return self._stage.forward(x, microbatch, slot, target, recompute)

    def recompute(self, microbatch: int, slot: int) -> StageIO:
        with self._running(microbatch):
            return self._stage.recompute(microbatch, slot)

    def backward(
        self, microbatch: int, slot: int, update: int, gradients: StageGradients | None
    ) -> StageGradients:
        result = self._stage.backward(microbatch, slot, update, gradients)
        whole, chunk = divmod(microbatch, self._chunks)
        if chunk == 0:
            del self._sequences[whole]
        return result

    def _running(self, microbatch: int) -> AbstractContextManager[None]:
        whole, chunk = divmod(microbatch, self._chunks)
        return running(self._sequences[whole], chunk)
