"""What an explorer shows for one setting, whether live or as static figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
import plotly.graph_objects as go

from pipekit.traces import Memory, Trace


@dataclass(frozen=True)
class Timeline:
    """A trace to draw.

    Attributes:
        trace: its events.
        notes: what to write beside each worker's row, if anything.
        title: in place of the trace's name.
        memory: whether to draw each worker's bytes below its row.
        capacity: of a worker, in bytes, to draw with them.
    """

    trace: Trace
    notes: Sequence[str] = ()
    title: str | None = None
    memory: bool = False
    capacity: float | None = None

    @property
    def name(self) -> str:
        """What the timeline is called."""
        return self.title or self.trace.name

    @property
    def held(self) -> Memory:
        """The bytes over time; there are some if ``memory`` is true."""
        assert self.trace.memory is not None
        return self.trace.memory

    @property
    def most_bytes(self) -> float:
        """The most that is drawn below a row, with the capacity; 0 if no memory is drawn."""
        return max(*self.held.peak_bytes, self.capacity or 0.0, 1.0) if self.memory else 0.0


@dataclass(frozen=True)
class Plot:
    """A plotly figure and the numbers in it."""

    figure: go.Figure
    data: pd.DataFrame


@dataclass(frozen=True)
class View:
    """Everything to show for one setting, from the top.

    Attributes:
        text: lines to read first.
        timelines: those in the same unit share one time axis.
        plots: by name, which is also their file's.
        table: labelled numbers; the caption says what they are.
        caption: of the table.
    """

    text: str = ""
    timelines: Sequence[Timeline] = ()
    plots: Mapping[str, Plot] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    caption: str = ""
