"""Which microbatches are recomputed, when, at what price (torchgpipe, section 2.1)."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import pandas as pd
from torch import Tensor, nn

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.engine import Pipeline, measure_memory
from pipekit.engine.config import Loss
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.papers.findings import Finding
from pipekit.papers.timelines import as_drawn, fastest_interval, update_ends
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


def rule_findings(trace: Trace, copy_s: float, picture: str, most: int = 8) -> list[Finding]:
    """Return what section 2.1 claims of which microbatches are recomputed, and when.

    Args:
        trace: what :func:`emulated` returned for 4 stages and 4 microbatches.
        copy_s: seconds to copy a gradient in it.
        most: microbatches and stages that are counted, from 1.
    """
    sizes = range(1, most + 1)
    except_last, always = (counts(sizes, sizes, mode) for mode in MODES[1:])
    return [
        Finding.exact(
            "torchgpipe-last-microbatch-not-recomputed",
            all(count == (m - 1) * n for (m, n), count in except_last.items())
            and recomputations(trace) == 3 * 4,
            f"m and n from 1 to {most} by the schedule; m = n = 4 also counted on the engine",
            picture,
        ),
        Finding.exact("torchgpipe-m1-no-checkpoint", sum(except_last[1, n] for n in sizes)),
        Finding.exact("torchgpipe-m1-bench-always", all(always[1, n] == n for n in sizes)),
        Finding.emulated(
            "torchgpipe-recompute-overlaps-wait",
            overlaps(trace, copy_s),
            "4 equal stages, m = 4, all microbatches but the last on all stages but the last",
            picture,
        ),
    ]


class Kept(NamedTuple):
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


Held = Mapping[int, Mapping[Recompute, Kept]]
"""By microbatches and mode."""


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

    def held(self) -> dict[Recompute, Kept]:
        """Return the bytes of a batch in each mode (measured)."""
        return {mode: self._held(pipeline) for mode, pipeline in self._pipelines.items()}

    def seconds(self, rounds: int) -> dict[Recompute, float]:
        """Return the seconds of the fastest batch in each mode (measured).

        Args:
            rounds: how many times each mode is timed, in turn, over :data:`BATCHES` batches.
        """
        batches = [self._batch] * BATCHES
        found = pd.DataFrame(
            {
                mode: fastest_interval(update_ends(pipeline.train(batches).trace))
                for mode, pipeline in self._pipelines.items()
            }
            for _ in range(rounds)
        )
        return {mode: float(found[mode].min()) for mode in MODES}

    def _held(self, pipeline: Pipeline) -> Kept:
        memory = measure_memory(pipeline.train([self._batch], memory=True))
        frame = memory.frame
        kept = frame["activations"] + frame["recompute"]
        return Kept(
            memory.peak_bytes[0],
            float(kept.max()) - sum(tensor.nbytes for tensor in self._batch),
            float(frame["weights"].max() + frame["gradients"].max()) / self._parameters,
        )


def effects(held: Held, seconds: Mapping[Recompute, float]) -> pd.DataFrame:
    """Return a row for each m and mode: what a batch holds, and for m = 2 its seconds.

    Args:
        held: by m and mode.
        seconds: by mode, for m = 2.
    """
    return pd.DataFrame(
        {
            "m": m,
            "mode": mode,
            "intermediate activations (MB)": each.intermediate_bytes / 1e6,
            "peak (MB)": each.peak_bytes / 1e6,
            "seconds": seconds[mode] if m == 2 else None,
            "label": "measured",
        }
        for m, modes in held.items()
        for mode, each in modes.items()
    )


def effect_findings(held: Held, seconds: Mapping[Recompute, float], picture: str) -> list[Finding]:
    """Return what section 2.1 claims of memory; arguments as for :func:`effects`, and the figure's
    name."""
    shares = [
        modes["never"].intermediate_bytes / modes["except_last"].intermediate_bytes / m
        for m, modes in held.items()
    ]
    two = held[2]
    equal = all(h["always"].peak_bytes == h["except_last"].peak_bytes for h in held.values())
    (size,) = {each.bytes_per_parameter for modes in held.values() for each in modes.values()}
    return [
        Finding.measured(
            "torchgpipe-memory-factor-m",
            min(shares),
            "the least of m = 2, 4, 8, the default mode, without the batch (inputs and targets)",
            picture,
        ),
        Finding.measured(
            "torchgpipe-last-microbatch-no-memory-gain",
            [
                two["always"].peak_bytes / two["except_last"].peak_bytes,
                seconds["always"] / seconds["except_last"],
            ],
            f"m = 2, one device; equal peaks at m = 4 and 8 too: {equal}",
            picture,
        ),
        Finding.exact(
            "torchgpipe-bytes-per-param-8", size, "counted in real training with plain SGD"
        ),
    ]
