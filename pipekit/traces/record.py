"""What a trace consists of, for the files that the class Trace itself stands on."""

from dataclasses import dataclass

import pandas as pd

from pipekit.traces.memory import Memory

COLUMNS = ["worker", "stage", "op", "microbatch", "version", "start_s", "end_s", "bytes"]
TRANSFERS = ["source", "destination", "purpose", "stage", "microbatch", "start_s", "end_s", "bytes"]
RECOMPUTE = "RECOMPUTE"
"""In the column of ops: a forward that is run again, as part of its backward's task."""


@dataclass(frozen=True)
class TraceRecord:
    """What a :class:`pipekit.traces.Trace` consists of, described there."""

    frame: pd.DataFrame
    label: str
    name: str
    workers: int
    unit: str = "s"
    transfers: pd.DataFrame | None = None
    memory: Memory | None = None
    origin_ns: int | None = None
    other: pd.DataFrame | None = None
    steps: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    chunks: int = 1
