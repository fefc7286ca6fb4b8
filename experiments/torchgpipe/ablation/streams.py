"""What GPUs do with what a host issues: each stream runs its kernels one by one.

pipekit's engine issues from each worker what that worker does, and copies beside the computing.
Here one host issues everything (torchgpipe, section 3.2.1), so that it can be asked what happens if
copies are issued to the streams that compute (section 3.2.3), or backwards in another order
(section 3.2.2).  Simulated only.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from experiments.study.traces import busy_s
from pipekit.traces import COLUMNS, TRANSFERS, Trace

Stream = tuple[str, int]
"""What it is for, and whose: ("compute", device)."""


class Pass(NamedTuple):
    """A kernel that computes: op is FORWARD, RECOMPUTE or BACKWARD."""

    op: str
    stage: int
    microbatch: int


class Copy(NamedTuple):
    """A kernel that copies from device to device: purpose is "activation" or "gradient"."""

    purpose: str
    source: int
    destination: int
    microbatch: int


class Issue(NamedTuple):
    """A kernel as the host issues it."""

    kernel: Pass | Copy  # what is done
    seconds: float  # it takes
    # all those that it holds up: it begins as the first in each of them
    streams: tuple[Stream, ...]
    # what must be over, in whatever streams it is; what was never issued is not needed
    needs: tuple[Pass | Copy, ...] = ()
    size: float = 0.0  # bytes that a copy moves


def run(issues: Iterable[Issue], name: str, devices: int) -> Trace:
    """Return when every kernel of an issue, in the host's order, runs (simulated).

    The host is never late; each of the ``devices`` has a stage.
    """
    free: dict[Stream, float] = defaultdict(float)
    ends: dict[Pass | Copy, float] = {}
    passes, copies = [], []
    for kernel, seconds, streams, needs, size in issues:
        earliest = [free[stream] for stream in streams]
        start = max(earliest + [ends[before] for before in needs if before in ends])
        end = ends[kernel] = start + seconds
        free.update(dict.fromkeys(streams, end))
        if isinstance(kernel, Pass):
            op, stage, microbatch = kernel
            passes.append((stage, stage, op, microbatch, 0, start, end, 0))
        else:
            purpose, source, destination, microbatch = kernel
            copies.append((source, destination, purpose, source, microbatch, start, end, size))
    frame = pd.DataFrame(passes, columns=COLUMNS).sort_values(["worker", "start_s"])
    transfers = pd.DataFrame(copies, columns=TRANSFERS)
    return Trace(frame, "simulated", name, devices, transfers=transfers)


def copies_of(trace: Trace) -> pd.DataFrame:
    """Return the copies of a trace that :func:`run` made."""
    assert trace.transfers is not None
    return trace.transfers


def overlap(trace: Trace) -> float:
    """Return the share of the copies' time in which a device at their ends computes.

    A copy counts for both of its devices.
    """
    hidden = 0.0
    for side in ("source", "destination"):
        for start, end, device in copies_of(trace)[["start_s", "end_s", side]].to_numpy():
            hidden += busy_s(trace.frame[trace.frame["worker"] == device], start, end)
    return hidden / (2 * copying(trace))


def copying(trace: Trace) -> float:
    """Return the seconds of all copies together."""
    return float((copies_of(trace)["end_s"] - copies_of(trace)["start_s"]).sum())
