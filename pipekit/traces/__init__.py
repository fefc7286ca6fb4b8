"""What happened, or would happen: events, bytes, where the time went, and Perfetto's format."""

from pipekit.traces.breakdown import describe_bubbles
from pipekit.traces.gaps import CAUSES, GAPS, Cause, describe_gaps
from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.record import COLUMNS, RECOMPUTE, TRANSFERS
from pipekit.traces.trace import Trace

__all__ = [
    "CAUSES",
    "COLUMNS",
    "GAPS",
    "PARTS",
    "RECOMPUTE",
    "TRANSFERS",
    "Cause",
    "Memory",
    "Trace",
    "describe_bubbles",
    "describe_gaps",
]
