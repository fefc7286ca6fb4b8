"""What recomputation saves, and what it costs: one device, really trained (torchgpipe, 2.1)."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd
from torch import Tensor, nn

from experiments.study.traces import own_activities
from experiments.torchgpipe.cells import pipeline
from pipekit.engine import Loss, OptimizerFactory, Pipeline, Watch, measure_memory
from pipekit.plans import Recompute

MODES: tuple[Recompute, ...] = "never", "except_last", "always"


class Kept(NamedTuple):
    """What a batch holds, really trained on one stage."""

    peak_bytes: int  # the most at once
    intermediate_bytes: float  # the most activations at once, without the batch itself
    bytes_per_parameter: float  # of weights and gradients together


@dataclass(frozen=True)
class OneStage:
    """A batch on one device, to be trained in each mode of recomputation."""

    model: nn.Sequential
    inputs: Tensor  # of the batch, [rows, ...]
    targets: Tensor
    microbatches: int  # m
    loss: Loss
    optimizer: OptimizerFactory
    modes: tuple[Recompute, ...] = MODES

    @cached_property
    def _pipelines(self) -> dict[Recompute, Pipeline]:
        how = {"balance": [len(self.model)], "optimizer": self.optimizer, "loss": self.loss}
        return {
            mode: pipeline(self.model, 1, self.microbatches, recompute=mode, **how)
            for mode in self.modes
        }

    def held(self) -> dict[Recompute, Kept]:
        """Return the bytes of a batch in each mode (measured)."""
        return {mode: self._held(each) for mode, each in self._pipelines.items()}

    def activities(self, count: int) -> list[dict[Recompute, dict[str, float]]]:
        """Return the CPU seconds of a batch in each mode by activity, in every round (measured)."""
        batch = self.inputs, self.targets
        return own_activities(
            {mode: (each, batch) for mode, each in self._pipelines.items()}, count
        )

    def rounds(self, count: int) -> pd.DataFrame:
        """Return the same, all activities together: a row a round and a column a mode."""
        each = self.activities(count)
        return pd.DataFrame({mode: sum(own.values()) for mode, own in one.items()} for one in each)

    def _held(self, pipeline: Pipeline) -> Kept:
        memory = measure_memory(
            pipeline.train([(self.inputs, self.targets)], watch=Watch(memory=True))
        )
        frame = memory.frame
        kept = float((frame["activations"] + frame["recompute"]).max())
        parameters = sum(p.numel() for p in self.model.parameters())
        return Kept(
            memory.peak_bytes[0],
            kept - self.inputs.nbytes - self.targets.nbytes,
            float(frame["weights"].max() + frame["gradients"].max()) / parameters,
        )
