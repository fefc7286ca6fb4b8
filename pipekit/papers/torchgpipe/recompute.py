"""Which microbatches are recomputed, when, at what price (torchgpipe, section 2.1)."""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import pandas as pd
from torch import Tensor, nn

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.engine import Pipeline
from pipekit.engine.execution.passes import Loss
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.papers.pipedream.overhead import update_ends
from pipekit.papers.timelines import as_drawn
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate
from pipekit.traces import RECOMPUTE, Trace

BATCHES = 3
"""Of a run that is timed."""

MODES: tuple[Recompute, ...] = "never", "except_last", "always"


def recomputations(trace: Trace) -> int:
    """Return how many forwards ran again, on all stages together."""
    return int((trace.frame["op"] == RECOMPUTE).sum())


def counts(
    microbatches: Iterable[int], stages: Iterable[int], recompute: Recompute
) -> dict[tuple[int, int], int]:
    """Return the recomputations of a batch by (m, n), from the schedule with equal stages."""
    return {
        (m, n): recomputations(
            simulate(as_drawn(n, m), Profile.uniform(n), Plan.by_hand([1] * n, recompute=recompute))
        )
        for m, n in product(microbatches, stages)
    }


def emulated(stages: int, microbatches: int, cluster: Cluster, output_bytes: float) -> Trace:
    """Return an emulated batch of equal stages of 20 and 40 ms, all but the last recomputed."""
    costs = Profile.uniform(stages, 0.020, 0.040, output_bytes=output_bytes)
    plan = Plan.by_hand([1] * stages, recompute="except_last")
    return emulate(as_drawn(stages, microbatches), costs, plan, cluster).trace


def overlaps(trace: Trace, copy_s: float) -> bool:
    """Return whether every recomputation begins before its gradient is there.

    On every stage but the last, for every microbatch that is recomputed: the start of F'(i, j) is
    before the end of B(i, j+1) and of the copy after it.

    Args:
        trace: of one batch.
        copy_s: seconds to copy a gradient to the stage before.
    """
    again, ready = {}, {}
    for op, stage, microbatch, start, end in trace.frame[
        ["op", "stage", "microbatch", "start_s", "end_s"]
    ].itertuples(index=False):
        if op == RECOMPUTE and stage < trace.workers - 1:
            again[stage, microbatch] = start
        elif op == "BACKWARD":
            ready[stage, microbatch] = end + copy_s
    return len(again) > 0 and all(
        start < ready[stage + 1, microbatch] for (stage, microbatch), start in again.items()
    )


def batch_seconds(trace: Trace) -> float:
    """Return the seconds of the fastest batch of a run but the first.

    What else runs on the machine can only make one slower; the first one also finds memory that was
    never touched.
    """
    return min(b - a for a, b in pairwise(update_ends(trace)))


class Held(NamedTuple):
    """What a batch holds, really trained on one stage.

    Attributes:
        peak_bytes: the most at once.
        intermediate_bytes: the most activations at once, without the batch itself, inputs and
            targets, which stay in all modes.
        bytes_per_parameter: of weights and gradients together.
    """

    peak_bytes: int
    intermediate_bytes: float
    bytes_per_parameter: float


class OneStage:
    """A batch on one device, to be trained in each mode of recomputation.

    Args:
        model: the network.
        inputs: of the batch, [rows, ...].
        targets: likewise.
        microbatches: m.
        loss: of a microbatch.
        optimizer: makes an optimizer.
    """

    def __init__(
        self,
        model: nn.Sequential,
        inputs: Tensor,
        targets: Tensor,
        microbatches: int,
        *,
        loss: Loss,
        optimizer: OptimizerFactory,
    ) -> None:
        self._parameters = sum(p.numel() for p in model.parameters())
        self._batch = inputs, targets
        self._pipelines = {
            mode: Pipeline(
                model,
                partial(as_drawn, 1, microbatches),
                balance=[len(model)],
                optimizer=optimizer,
                loss=loss,
                recompute=mode,
                devices=["cpu"],
            )
            for mode in MODES
        }

    def held(self) -> dict[Recompute, Held]:
        """Return the bytes of a batch in each mode (measured)."""
        return {mode: self._held(pipeline) for mode, pipeline in self._pipelines.items()}

    def seconds(self, rounds: int) -> dict[Recompute, float]:
        """Return the seconds of the fastest batch in each mode (measured).

        Args:
            rounds: how many times each mode is timed, in turn, over :data:`BATCHES` batches.
        """
        batches = [self._batch] * BATCHES
        found = pd.DataFrame(
            {mode: batch_seconds(p.train(batches).trace) for mode, p in self._pipelines.items()}
            for _ in range(rounds)
        )
        return {mode: float(found[mode].min()) for mode in MODES}

    def _held(self, pipeline: Pipeline) -> Held:
        memory = pipeline.train([self._batch], memory=True).trace.memory
        assert memory is not None
        frame = memory.frame
        kept = frame["activations"] + frame["recompute"]
        return Held(
            memory.peak_bytes[0],
            float(kept.max()) - sum(tensor.nbytes for tensor in self._batch),
            float(frame["weights"].max() + frame["gradients"].max()) / self._parameters,
        )
