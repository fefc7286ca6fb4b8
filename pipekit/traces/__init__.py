"""What happened, or would happen: events, bytes, where the time went, and Perfetto's format."""

from pipekit.traces.bubbles import describe_bubbles
from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.record import COLUMNS, RECOMPUTE, TRANSFERS
from pipekit.traces.trace import Trace

__all__ = ["COLUMNS", "PARTS", "RECOMPUTE", "TRANSFERS", "Memory", "Trace", "describe_bubbles"]
