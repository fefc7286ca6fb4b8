"""What a reader returns: passes as they were recorded, before steps and clocks are put in order."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Recording:
    """What a file has.

    Attributes:
        frame: one row a pass: worker, stage, op, microbatch, step, start_s, end_s; replica, if
            several pipelines train together.
        name: of the file, for titles.
        workers: all that were recorded.
        steps: step, start_s, end_s on the clock of ``frame``, perhaps a row for each worker; None:
            from first pass to last.
        other: as in :class:`pipekit.Trace`.
        own_clocks: whether each worker counts from its own start of each step.
        notes: what reading left out.
    """

    frame: pd.DataFrame
    name: str
    workers: int
    steps: pd.DataFrame | None = None
    other: pd.DataFrame | None = None
    own_clocks: bool = False
    notes: tuple[str, ...] = ()
