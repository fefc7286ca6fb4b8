"""When a run's work ends, and how long a batch takes once the pipeline is full.

The first batches of a run fill the pipeline and the last ones drain it; a steady state lies
between.  Each paper's notebooks say themselves which batches they count.
"""

from collections.abc import Sequence
from itertools import pairwise

from pipekit.traces import Trace


def update_ends(trace: Trace, worker: int = 0) -> list[float]:
    """Return when a worker's updates ended, in the trace's unit."""
    frame = trace.frame
    updates = frame[(frame["op"] == "UPDATE") & (frame["worker"] == worker)]
    return list(updates["end_s"])


def backward_ends(trace: Trace, stage: int = 0, group: int = 1) -> list[float]:
    """Return when the backwards of a stage ended, in order, in the trace's unit.

    On stage 0 a microbatch leaves the pipeline then.

    Args:
        trace: of a run.
        stage: on any of its workers.
        group: consecutive microbatches that end together, with the last of them; say those of a
            batch.
    """
    frame = trace.frame
    own = frame[(frame["op"] == "BACKWARD") & (frame["stage"] == stage)]
    return sorted(own["end_s"].groupby(own["microbatch"] // group).max())


def mean_interval(ends: Sequence[float], first: int, last: int) -> float:
    """Return the mean time from one end to the next, from ``ends[first]`` to ``ends[last]``."""
    return float(ends[last] - ends[first]) / (last - first)


def fastest_interval(ends: Sequence[float]) -> float:
    """Return the shortest time from one end to the next.

    What else runs on a machine can only make a batch slower.  The time before the first end, which
    also finds memory that was never touched, does not count.
    """
    return min(after - before for before, after in pairwise(ends))
