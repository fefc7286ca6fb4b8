"""What a training run returns."""

from dataclasses import dataclass, field
from typing import Any

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
        weight_buffers: for each worker, the weight versions that it held in memory.
        peak_in_flight: for each worker, the most microbatches that waited for their backward.
        provenance: what the numbers are and where they were made.
    """

    losses: list[float]
    trace: Trace = field(repr=False)
    wall_s: float
    schedule: Schedule
    weight_buffers: tuple[int, ...]
    peak_in_flight: tuple[int, ...]
    provenance: dict[str, Any] = field(repr=False)
