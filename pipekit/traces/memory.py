"""Bytes over time on every worker, from simulation or measurement."""

from dataclasses import dataclass

import pandas as pd

PARTS = ["weights", "gradients", "optimizer", "activations", "recompute"]


@dataclass(frozen=True)
class Memory:
    """What lies in memory when.

    Attributes:
        frame: a row a change, sorted by worker and time: worker, time_s, and the bytes from then
            on: weights (all their versions, and buffers), gradients, optimizer, activations (what
            forwards keep for their backwards), recompute (what a recomputed forward keeps).
        label: what the numbers are: measured, simulated or exact.
    """

    frame: pd.DataFrame
    label: str

    @property
    def total(self) -> pd.Series:
        """Bytes of all parts together, for each row of ``frame``."""
        return self.frame[PARTS].sum(axis=1)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes at once, for each worker that ``frame`` has."""
        peaks = self.total.groupby(self.frame["worker"]).max()
        return tuple(round(float(peak)) for peak in peaks)
