"""What a training run returns."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pipekit.schedules import Schedule
from pipekit.traces import Trace


@dataclass(frozen=True)
class Run:
    """The outcome of one ``train`` call.

    Attributes:
        losses: of each batch, the loss averaged over its rows.
        trace: what every worker did and when; empty if tracing was off.
        wall_s: seconds from the start of the workers to the end of the last one.
        schedule: what was run.
        loss_scales: of each update's losses, if they are scaled.
        skipped_updates: those whose gradient was not finite, from 1: update t makes W(t), which is
            then a copy of the weights before it.
        weight_buffers: for each worker, the weight versions that it held in memory.
        peak_in_flight: for each worker, the most microbatches that waited for their backward.
        traffic: bytes that crossed from worker to worker, a row for each (source, destination,
            purpose); the purpose is "activation", "gradient" (of an activation) or "weights"
            (gradients of weights, summed by the workers of a stage).
        provenance: what the numbers are and where they were made.
    """

    losses: list[float]
    trace: Trace = field(repr=False)
    wall_s: float
    schedule: Schedule
    loss_scales: tuple[float, ...]
    skipped_updates: tuple[int, ...]
    weight_buffers: tuple[int, ...]
    peak_in_flight: tuple[int, ...]
    traffic: pd.DataFrame = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)
