"""Traces as Chrome's trace events, the JSON that Perfetto (ui.perfetto.dev) shows.

A worker is a process with threads: what it computes, sends and receives.  Bytes in memory are
counters; ``ts`` and ``dur`` are microseconds.  The trace's own tables lie beside the events, in
seconds, and are all that is read back: a product would not come back exactly.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import AfterValidator, BaseModel, Field

from pipekit.reading import read_json
from pipekit.schedules import OPS, Op, Task
from pipekit.traces.memory import PARTS, Memory
from pipekit.traces.record import COLUMNS, TRANSFERS, TraceRecord, whole

FIRST_PROCESS = 2**22
"""Worker 0's number: Linux gives no process this one or a higher, so that the events of torch's
profiler can lie in the same file."""
_MICRO = 1e6
_MEMORY = ["worker", "time_s", *PARTS]
_WHOLE = {"worker", "stage", "microbatch", "version", "source", "destination"}
_Row = dict[str, Any]  # of a table, by its columns


def _known(name: str) -> str:
    if name not in {op.name for op in OPS}:
        raise ValueError(f"there is no op {name!r}")
    return name


_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=0, lt=2**63)] | Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Index = Annotated[int, Field(ge=0, lt=10**9)]
_Worker = Annotated[int, Field(ge=0, lt=10**6)]
_OpName = Annotated[str, AfterValidator(_known)]
_Label = Literal["measured", "emulated", "simulated", "exact"]


class _Tables(BaseModel):
    """A trace's tables, rows of the columns that they have there."""

    frame: list[tuple[_Worker, _Index, _OpName, _Index, _Index, _Seconds, _Seconds, _Bytes]]
    transfers: list[tuple[_Worker, _Worker, str, _Index, _Index, _Seconds, _Seconds, _Bytes]] | None
    memory: list[tuple[_Worker, _Seconds, _Bytes, _Bytes, _Bytes, _Bytes, _Bytes]] | None


class _About(BaseModel):
    format: Literal["pipekit trace 2"]
    label: _Label
    schedule: str
    workers: _Worker
    unit: Literal["s", "slots"]
    chunks: Annotated[int, Field(ge=1, lt=10**9)] = 1
    memory: _Label | None


class _File(BaseModel):
    """A trace that pipekit wrote; what its events show is read from the tables."""

    otherData: _About
    baseTimeNanoseconds: Annotated[int, Field(ge=0, lt=2**63)] | None
    tables: _Tables


class _TorchEvent(BaseModel, extra="allow"):
    ts: _Seconds = 0.0


class _TorchProfile(BaseModel):
    """What torch.profiler exports: microseconds since a base."""

    baseTimeNanoseconds: int
    traceEvents: list[_TorchEvent]


def write(
    trace: TraceRecord,
    path: str | os.PathLike[str],
    provenance: dict[str, Any] | None,
    torch_profiles: Sequence[str | os.PathLike[str]],
) -> None:
    """Write a trace; see :meth:`pipekit.traces.Trace.to_perfetto`."""
    computed, sent = _rows(trace.frame, COLUMNS), _rows(trace.transfers, TRANSFERS)
    held = _rows(trace.memory and trace.memory.frame, _MEMORY)
    events: list[_Row] = []
    for row in computed or ():
        task = Task(Op.named(row["op"]), row["stage"], row["microbatch"], row["version"])
        events.append(_slice(task.label, "compute", row["worker"], 0, row))
    events += _messages(sent or ())
    threads = sorted({(e["pid"], e["tid"], e["cat"]) for e in events if e["ph"] == "X"})
    for row in held or ():
        drawn = {part: row[part] for part in PARTS}
        place = {"ts": row["time_s"] * _MICRO, "pid": FIRST_PROCESS + row["worker"]}
        events.append({"name": "bytes", "ph": "C", **place, "args": drawn})
    for worker in range(trace.workers):
        title = f"worker {worker} ({trace.label})"
        events.append(_name("process", FIRST_PROCESS + worker, 0, title))
    events += (_name("thread", pid, tid, kind) for pid, tid, kind in threads)
    for profile in torch_profiles:
        events += _beside(trace, profile)
    record = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.origin_ns,
        "otherData": {
            "format": "pipekit trace 2",
            "label": trace.label,
            "schedule": trace.name,
            "workers": trace.workers,
            "unit": trace.unit,
            "chunks": trace.chunks,
            "memory": None if trace.memory is None else trace.memory.label,
            "provenance": provenance,
        },
        "tables": {"frame": _cells(computed), "transfers": _cells(sent), "memory": _cells(held)},
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(record, allow_nan=False) + "\n", "utf-8")


def read(path: str | os.PathLike[str]) -> TraceRecord:
    """Read a trace back; see :meth:`pipekit.traces.Trace.from_perfetto`."""
    content = read_json(path, _File, "a trace that pipekit wrote")
    about, tables = content.otherData, content.tables
    sent = None if tables.transfers is None else pd.DataFrame(tables.transfers, columns=TRANSFERS)
    held = pd.DataFrame(tables.memory or [], columns=_MEMORY)
    return TraceRecord(
        pd.DataFrame(tables.frame, columns=COLUMNS),
        about.label,
        about.schedule,
        about.workers,
        about.unit,
        transfers=sent,
        memory=None if about.memory is None else Memory(held, about.memory),
        origin_ns=content.baseTimeNanoseconds,
        chunks=about.chunks,
    )


def _rows(frame: pd.DataFrame | None, columns: list[str]) -> list[_Row] | None:
    if frame is None:
        return None
    numbers = whole(frame, [name for name in columns if name in _WHOLE])
    rows: list[_Row] = frame[columns].assign(**numbers).to_dict("records")
    return rows


def _cells(rows: list[_Row] | None) -> list[list[Any]] | None:
    return None if rows is None else [[*row.values()] for row in rows]


def _messages(rows: Sequence[_Row]) -> Iterator[_Row]:
    """Yield a send, a receive and an arrow between them for each message."""
    sends, receives = (_lanes(rows, end) for end in ("source", "destination"))
    for number, row in enumerate(rows):
        name = f"{row['purpose']} {row['microbatch']}"
        # Even threads receive and odd ones send: as many of each as there are messages at a time.
        sent = _slice(name, "send", row["source"], 2 * sends[number] + 1, row)
        received = _slice(name, "receive", row["destination"], 2 * receives[number] + 2, row)
        arrow = {"name": "message", "cat": "message", "id": number}
        yield sent
        yield received
        for ph, end in {"s": sent, "f": received}.items():
            yield arrow | {"ph": ph, "bp": "e"} | {key: end[key] for key in ("ts", "pid", "tid")}


def _name(what: str, pid: int, tid: int, name: str) -> _Row:
    return {"name": f"{what}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, kind: str, worker: int, tid: int, row: _Row) -> _Row:
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


def _lanes(rows: Sequence[_Row], end: str) -> list[int]:
    """Return a lane for each message of a worker, so that those of one lane do not overlap."""
    lanes = [0] * len(rows)
    busy: dict[int, list[float]] = {}  # until when each of a worker's lanes is
    for number in sorted(range(len(rows)), key=lambda number: rows[number]["start_s"]):
        row = rows[number]
        until = busy.setdefault(row[end], [])
        lane = next((n for n, when in enumerate(until) if when <= row["start_s"]), len(until))
        until[lane:] = [row["end_s"], *until[lane + 1 :]]
        lanes[number] = lane
    return lanes


def _beside(trace: TraceRecord, profile: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the events of a file of torch.profiler's on the trace's clock."""
    if trace.origin_ns is None:
        raise ValueError(
            f"{trace.name} is {trace.label} and ran at no time: only a real run's trace can lie "
            f"beside a profile of torch's"
        )
    theirs = read_json(profile, _TorchProfile, "a profile that torch.profiler exported")
    shift = (theirs.baseTimeNanoseconds - trace.origin_ns) / 1e3
    events = [event.model_dump(exclude_unset=True) for event in theirs.traceEvents]
    return [e | {"ts": e["ts"] + shift} if "ts" in e else e for e in events]
