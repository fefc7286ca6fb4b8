"""What happened, or would happen: events, bytes, where the time went, and Perfetto's format."""

from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.trace import COLUMNS, RECOMPUTE, TRANSFERS, Trace

__all__ = ["COLUMNS", "PARTS", "RECOMPUTE", "TRANSFERS", "Memory", "Trace"]
