"""Bytes over time on every worker, from simulation or measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

PARTS = ["weights", "gradients", "optimizer", "activations", "recompute"]


@dataclass(frozen=True)
class Memory:
    """What lies in memory when.

    Attributes:
        frame: one row a change, sorted by worker and time: worker, time_s, and the bytes from then
            on: weights (all their versions, and the layers' buffers), gradients, optimizer,
            activations (what forwards keep for their backwards), recompute (what a recomputed
            forward keeps for the backward that follows it at once).
        label: what the numbers are: measured, simulated or exact.
        allocated_bytes: of a measured run on GPUs, by worker, the most bytes that PyTorch's
            allocator had given out on the worker's GPU at once: whatever ``frame`` counts of all
            its workers, and besides it gradients of activations, what waits for its pass, and what
            operators use for a moment.
    """

    frame: pd.DataFrame
    label: str
    allocated_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def total(self) -> pd.Series:
        """Bytes of all parts together, for each row of ``frame``."""
        return self.frame[PARTS].sum(axis=1)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes at once, for each worker that ``frame`` has."""
        peaks = self.total.groupby(self.frame["worker"]).max()
        return tuple(round(float(peak)) for peak in peaks)
