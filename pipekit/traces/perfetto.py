"""Traces as Chrome's trace events, the JSON that Perfetto (ui.perfetto.dev) shows.

A worker is a process with threads: what it computes, sends and receives.  An arrow goes with every
message that was followed, and bytes in memory are counters.  ``ts`` and ``dur`` are microseconds;
``args`` keep a row of the trace as it is, in seconds, since a product would not come back exactly.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipekit.reading import read_json
from pipekit.schedules import Op, Task
from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.perfetto_schema import (
    BYTES,
    COMPUTE,
    FIRST_PROCESS,
    RECEIVE,
    SEND,
    Computed,
    Event,
    File,
    Held,
    Sent,
    TorchProfile,
    as_row,
)
from pipekit.traces.record import COLUMNS, TRANSFERS, TraceRecord

_MICRO = 1e6
_MEMORY = ["worker", "time_s", *PARTS]


def write(
    trace: TraceRecord,
    path: str | os.PathLike[str],
    provenance: dict[str, Any] | None,
    torch_profiles: Sequence[str | os.PathLike[str]],
) -> None:
    """Write a trace; see :meth:`pipekit.traces.Trace.to_perfetto`."""
    events = [*_computed(trace), *_messages(trace), *_memory(trace)]
    events += _names(trace, events)
    for profile in torch_profiles:
        events += _beside(trace, profile)
    record = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.origin_ns,
        "otherData": {
            "format": "pipekit trace 1",
            "label": trace.label,
            "schedule": trace.name,
            "workers": trace.workers,
            "unit": trace.unit,
            "followed": trace.transfers is not None,
            "chunks": trace.chunks,
            "memory": None if trace.memory is None else trace.memory.label,
            "provenance": provenance,
        },
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(record, allow_nan=False) + "\n", "utf-8")


def read(path: str | os.PathLike[str]) -> TraceRecord:
    """Read a trace back; see :meth:`pipekit.traces.Trace.from_perfetto`."""
    content = read_json(path, File, "a trace that pipekit wrote")
    about = content.otherData
    rows: dict[type, list[dict[str, Any]]] = {Computed: [], Sent: [], Held: []}
    for event in content.traceEvents:
        if isinstance(event, Event):
            rows[type(event)].append(as_row(event))
    memory = pd.DataFrame(rows[Held], columns=_MEMORY)
    return TraceRecord(
        pd.DataFrame(rows[Computed], columns=COLUMNS),
        about.label,
        about.schedule,
        about.workers,
        about.unit,
        transfers=pd.DataFrame(rows[Sent], columns=TRANSFERS) if about.followed else None,
        memory=None if about.memory is None else Memory(memory, about.memory),
        origin_ns=content.baseTimeNanoseconds,
        chunks=about.chunks,
    )


def _computed(trace: TraceRecord) -> Iterator[dict[str, Any]]:
    for row in _rows(trace.frame, "worker", "stage", "microbatch", "version"):
        yield _slice(_label(row), COMPUTE, row["worker"], 0, row)


def _label(row: dict[str, Any]) -> str:
    """Return what an event is called: as its task."""
    return Task(Op.named(row["op"]), row["stage"], row["microbatch"], row["version"]).label


def _messages(trace: TraceRecord) -> Iterator[dict[str, Any]]:
    """Yield a send, a receive and an arrow between them for each message."""
    if trace.transfers is None:
        return
    sends, receives = (_lanes(trace.transfers, end) for end in ("source", "destination"))
    rows = _rows(trace.transfers, "source", "destination", "stage", "microbatch")
    for number, row in enumerate(rows):
        name = f"{row['purpose']} {row['microbatch']}"
        # Even threads receive and odd ones send: as many of each as there are messages at a time.
        sent = _slice(name, SEND, row["source"], 2 * sends[number] + 1, row)
        received = _slice(name, RECEIVE, row["destination"], 2 * receives[number] + 2, row)
        arrow = {"name": "message", "cat": "message", "id": number}
        yield sent
        yield received
        for ph, end in {"s": sent, "f": received}.items():
            yield arrow | {"ph": ph, "bp": "e"} | {key: end[key] for key in ("ts", "pid", "tid")}


def _memory(trace: TraceRecord) -> Iterator[dict[str, Any]]:
    if trace.memory is None:
        return
    for row in _rows(trace.memory.frame, "worker"):
        worker, time_s = row.pop("worker"), row.pop("time_s")
        yield {
            "name": BYTES,
            "ph": "C",
            "ts": time_s * _MICRO,
            "pid": FIRST_PROCESS + worker,
            "args": row,  # each of them is drawn
            "time_s": time_s,
        }


def _names(trace: TraceRecord, events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the names of the processes and of the threads that the events have."""
    for worker in range(trace.workers):
        yield _name("process", FIRST_PROCESS + worker, 0, f"worker {worker} ({trace.label})")
    slices = (event for event in events if event["ph"] == "X")
    for pid, tid, kind in sorted({(e["pid"], e["tid"], e["cat"]) for e in slices}):
        yield _name("thread", pid, tid, kind)


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": f"{what}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, kind: str, worker: int, tid: int, row: dict[str, Any]) -> dict[str, Any]:
    start, end = row["start_s"], row["end_s"]
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start * _MICRO,
        "dur": (end - start) * _MICRO,
        "pid": FIRST_PROCESS + worker,
        "tid": tid,
        "args": row,
    }


def _rows(frame: pd.DataFrame, *whole: str) -> Iterator[dict[str, Any]]:
    """Yield a table's rows; the columns named are whole numbers."""
    rows: list[dict[str, Any]] = frame.astype(dict.fromkeys(whole, int)).to_dict("records")
    return iter(rows)


def _lanes(transfers: pd.DataFrame, end: str) -> list[int]:
    """Return a lane for each message of a worker, so that those of one lane do not overlap."""
    lanes = [0] * len(transfers)
    busy: dict[int, list[float]] = {}  # until when each of a worker's lanes is
    spans = transfers[[end, "start_s", "end_s"]].to_numpy()
    for number in np.argsort(transfers["start_s"], kind="stable"):
        worker, starts, ends = spans[number]
        until = busy.setdefault(worker, [])
        lane = next((n for n, when in enumerate(until) if when <= starts), len(until))
        until[lane:] = [ends, *until[lane + 1 :]]
        lanes[number] = lane
    return lanes


def _beside(trace: TraceRecord, profile: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the events of a file of torch.profiler's on the trace's clock."""
    if trace.origin_ns is None:
        raise ValueError(
            f"{trace.name} is {trace.label} and ran at no time: only a real run's trace can lie "
            f"beside a profile of torch's"
        )
    theirs = read_json(profile, TorchProfile, "a profile that torch.profiler exported")
    shift = (theirs.baseTimeNanoseconds - trace.origin_ns) / 1e3
    events = [event.model_dump(exclude_unset=True) for event in theirs.traceEvents]
    return [e | {"ts": e["ts"] + shift} if "ts" in e else e for e in events]
