"""What recomputation saves, and what it costs: one device, really trained (torchgpipe, 2.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd
from torch import Tensor, nn

from experiments.recorded.findings import Finding
from experiments.study.timing import own_seconds
from experiments.torchgpipe.trained import pipeline
from pipekit.engine import Loss, OptimizerFactory, Pipeline, measure_memory
from pipekit.plans import Recompute

MODES: tuple[Recompute, ...] = "never", "except_last", "always"


class Kept(NamedTuple):
    """What a batch holds, really trained on one stage."""

    peak_bytes: int  # the most at once
    # the most activations at once, without the batch itself, inputs and targets, which stay in all
    # modes
    intermediate_bytes: float
    bytes_per_parameter: float  # of weights and gradients together


Held = Mapping[int, Mapping[Recompute, Kept]]
"""By microbatches and mode."""


@dataclass(frozen=True)
class OneStage:
    """A batch on one device, to be trained in each mode of recomputation."""

    model: nn.Sequential
    inputs: Tensor  # of the batch, [rows, ...]
    targets: Tensor
    microbatches: int  # m
    loss: Loss
    optimizer: OptimizerFactory

    @cached_property
    def _pipelines(self) -> dict[Recompute, Pipeline]:
        how = {"balance": [len(self.model)], "optimizer": self.optimizer, "loss": self.loss}
        return {
            mode: pipeline(self.model, 1, self.microbatches, recompute=mode, **how)
            for mode in MODES
        }

    def held(self) -> dict[Recompute, Kept]:
        """Return the bytes of a batch in each mode (measured)."""
        return {mode: self._held(each) for mode, each in self._pipelines.items()}

    def rounds(self, count: int) -> pd.DataFrame:
        """Return the CPU seconds of a batch, a row a round and a column a mode (measured)."""
        pairs = {
            mode: (each, (self.inputs, self.targets)) for mode, each in self._pipelines.items()
        }
        return own_seconds(pairs, count)

    def seconds(self, rounds: int) -> dict[Recompute, float]:
        """Return the CPU seconds of each mode's fastest batch, timed so many rounds (measured)."""
        found = self.rounds(rounds)
        return {mode: float(found[mode].min()) for mode in self._pipelines}

    def _held(self, pipeline: Pipeline) -> Kept:
        memory = measure_memory(pipeline.train([(self.inputs, self.targets)], memory=True))
        frame = memory.frame
        kept = frame["activations"] + frame["recompute"]
        parameters = sum(p.numel() for p in self.model.parameters())
        return Kept(
            memory.peak_bytes[0],
            float(kept.max()) - self.inputs.nbytes - self.targets.nbytes,
            float(frame["weights"].max() + frame["gradients"].max()) / parameters,
        )


def effects(held: Held, seconds: Mapping[Recompute, float]) -> pd.DataFrame:
    """Return a row for each m and mode: what a batch holds, and for m = 2 its ``seconds``."""
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


def findings(held: Held, seconds: Mapping[Recompute, float], picture: str) -> list[Finding]:
    """Return what section 2.1 claims of memory; arguments as for :func:`effects`."""
    least = min(
        modes["never"].intermediate_bytes / modes["except_last"].intermediate_bytes / m
        for m, modes in held.items()
    )
    peaks = {m: [modes[mode].peak_bytes for mode in MODES] for m, modes in held.items()}
    equal = all(always == except_last for _, except_last, always in peaks.values())
    gain = [peaks[2][2] / peaks[2][1], seconds["always"] / seconds["except_last"]]
    (size,) = {each.bytes_per_parameter for modes in held.values() for each in modes.values()}
    default = "the least of m = 2, 4, 8, the default mode, without the batch (inputs and targets)"
    others = f"m = 2, one device; equal peaks at m = 4 and 8 too: {equal}"
    counted = "counted in real training with plain SGD"
    return [
        Finding.measured("torchgpipe-memory-factor-m", least, default, picture),
        Finding.measured("torchgpipe-last-microbatch-no-memory-gain", gain, others, picture),
        Finding.exact("torchgpipe-bytes-per-param-8", size, counted),
    ]
