"""What stands in a file of trace events: ours, and torch.profiler's."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, model_validator

from pipekit.schedules import OPS

FIRST_PROCESS = 2**22
"""Worker 0's number: Linux gives no process this one or a higher, so that the events of torch's
profiler can lie in the same file."""
COMPUTE, SEND, RECEIVE, BYTES = "compute", "send", "receive", "bytes"

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=0, lt=2**63)] | Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Index = Annotated[int, Field(ge=0, lt=10**9)]
_Worker = Annotated[int, Field(ge=0, lt=10**6)]
_Label = Literal["measured", "emulated", "simulated", "exact"]


class _Row(BaseModel):
    stage: _Index
    microbatch: _Index
    start_s: _Finite
    end_s: _Finite
    bytes: _Bytes


def _known(name: str) -> str:
    if name not in {op.name for op in OPS}:
        raise ValueError(f"there is no op {name!r}")
    return name


class _Task(_Row):
    worker: _Worker
    op: Annotated[str, AfterValidator(_known)]
    version: _Index


class _Message(_Row):
    source: _Worker
    destination: _Worker
    purpose: str


class _Parts(BaseModel):
    weights: _Bytes
    gradients: _Bytes
    optimizer: _Bytes
    activations: _Bytes
    recompute: _Bytes


class Computed(BaseModel):
    """A pass or an update: a row of a trace's ``frame``."""

    args: _Task


class Sent(BaseModel):
    """A message: a row of a trace's ``transfers``."""

    args: _Message


class Held(BaseModel):
    """Bytes in memory from some time on: a row of a trace's ``memory``."""

    pid: Annotated[int, Field(lt=FIRST_PROCESS + 10**6)]
    time_s: _Finite
    args: _Parts


Event = Computed | Sent | Held


def as_row(event: Event) -> dict[str, Any]:
    """Return the row of a trace's table that an event stands for."""
    row = event.args.model_dump()
    if isinstance(event, Held):
        row |= {"worker": event.pid - FIRST_PROCESS, "time_s": event.time_s}
    return row


def _kind(event: Any) -> str | None:
    """Return what an event stands for; what is not a row of ours is another's, or follows."""
    if not isinstance(event, dict):
        return None
    pid = event.get("pid")
    if not isinstance(pid, int) or pid < FIRST_PROCESS or event.get("ph") not in ("X", "C"):
        return "other"
    if event["ph"] == "C":
        return BYTES
    return {COMPUTE: COMPUTE, SEND: SEND, RECEIVE: "other"}.get(str(event.get("cat")))


class _About(BaseModel):
    format: Literal["pipekit trace 1"]
    label: _Label
    schedule: str
    workers: _Worker
    unit: Literal["s", "slots"]
    followed: bool
    chunks: Annotated[int, Field(ge=1, lt=10**9)] = 1
    memory: _Label | None


class File(BaseModel):
    """A trace that pipekit wrote, maybe with events of others in it."""

    otherData: _About
    baseTimeNanoseconds: Annotated[int, Field(ge=0, lt=2**63)] | None
    traceEvents: list[
        Annotated[
            Annotated[Computed, Tag(COMPUTE)]
            | Annotated[Sent, Tag(SEND)]
            | Annotated[Held, Tag(BYTES)]
            | Annotated[dict[str, Any], Tag("other")],
            Discriminator(
                _kind,
                custom_error_type="event",
                custom_error_message="it is none of compute, send, receive and bytes",
            ),
        ]
    ]

    @model_validator(mode="after")
    def _require_workers(self) -> "File":
        for number, event in enumerate(self.traceEvents):
            row = as_row(event) if isinstance(event, Event) else {}
            for end in ("worker", "source", "destination"):
                if row.get(end, 0) >= self.otherData.workers:
                    raise ValueError(
                        f"traceEvents[{number}] is of worker {row[end]}, and there are "
                        f"{self.otherData.workers}"
                    )
        return self


class _TorchEvent(BaseModel, extra="allow"):
    ts: _Finite = 0.0


class TorchProfile(BaseModel):
    """What torch.profiler exports: microseconds since a base."""

    baseTimeNanoseconds: int
    traceEvents: list[_TorchEvent]
