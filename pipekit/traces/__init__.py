"""What happened, or would happen: events, bytes, where the time went, and Perfetto's format."""

from pipekit.traces.breakdown import describe_bubbles as describe_bubbles
from pipekit.traces.gaps import CAUSES as CAUSES
from pipekit.traces.gaps import GAPS as GAPS
from pipekit.traces.gaps import Cause as Cause
from pipekit.traces.gaps import describe_gaps as describe_gaps
from pipekit.traces.memory import PARTS as PARTS
from pipekit.traces.memory import Memory as Memory
from pipekit.traces.record import COLUMNS as COLUMNS
from pipekit.traces.record import RECOMPUTE as RECOMPUTE
from pipekit.traces.record import TRANSFERS as TRANSFERS
from pipekit.traces.trace import Trace as Trace
