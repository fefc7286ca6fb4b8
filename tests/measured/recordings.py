"""Recorded runs made here: simulated ones, written as others write theirs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pipekit as pk
from pipekit import clusters
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import OPS, Op, Schedule
from pipekit.schedules.ops import PASSES
from pipekit.simulation.costs import Costs, Shards

SECONDS: Mapping[Op, float] = {
    Op.FORWARD: 0.01,
    Op.BACKWARD: 0.02,
    Op.BACKWARD_INPUT: 0.01,
    Op.BACKWARD_WEIGHT: 0.01,
    Op.UPDATE: 0.002,
    Op.named("CURVATURE"): 0.008,
    Op.named("INVERSION"): 0.016,
}
BYTES, BANDWIDTH = 1e6, 1e9


def simulated(
    schedule: Schedule,
    seed: int = 0,
    jitter: float = 0.0,
    *,
    workers: Mapping[int, float] | None = None,
    stages: Mapping[int, float] | None = None,
    bandwidth: float = BANDWIDTH,
) -> pk.Trace:
    """Return a simulated run of a finite schedule, with other times for some of its tasks."""
    chance = np.random.default_rng(seed)
    tasks = {}
    for worker, own in enumerate(schedule.workers):
        for op, stage, microbatch, _ in own:
            if op.stream:
                continue
            seconds = SECONDS[op] * chance.uniform(1 - jitter, 1 + jitter)
            seconds *= (workers or {}).get(worker, 1.0)
            if op is not Op.UPDATE:
                seconds *= (stages or {}).get(stage, 1.0)
            tasks[worker, op, stage, microbatch] = seconds
    layer = LayerProfile("", 0.01, 0.02, BYTES, backward_input_s=0.01, backward_weight_s=0.01)
    profile = Profile((layer,) * schedule.stages, rows=1)
    other = {op: seconds for op, seconds in SECONDS.items() if op not in (*PASSES, Op.UPDATE)}
    costs = Costs(
        profile, tasks=tasks, ops=other, host_bytes_per_s=bandwidth, shards=Shards(2, bandwidth)
    )
    return pk.simulate(schedule, costs, cluster=clusters.flat(schedule.worker_count, bandwidth))


def passes(trace: pk.Trace) -> pd.DataFrame:
    """Return a trace's forwards and backwards, with the batch that each is of as its step."""
    frame = trace.frame[trace.frame["op"] != "UPDATE"]
    return frame.assign(step=0)


def with_waits(frame: pd.DataFrame) -> pd.DataFrame:
    """Let each span begin where the one before it ends."""
    return frame.assign(start_s=frame.groupby("worker")["end_s"].shift(fill_value=0.0))


def primus(trace: pk.Trace, folder: Path, iterations: int = 6, *, waits: bool = False) -> Path:
    """Write a run as Primus does: each rank on a clock of its own, the first iteration slow."""
    frame = with_waits(passes(trace)) if waits else passes(trace)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"pp_size": trace.workers, "vp_size": 1, "num_mbs": int(frame["microbatch"].max()) + 1}
    (folder / "config.json").write_text(json.dumps(config))
    for rank, rows in frame.groupby("worker"):
        since = 0.3e-3 * rank  # the clock of a rank that begins later
        written: dict[str, Any] = {}
        for number in range(1, iterations + 1):
            slow = 3.0 if number == 1 else 1.0
            of: dict[str, Any] = {"total": slow * 1e3 * trace.makespan_s, "memory": 1.0}
            for name, op in (("fwd", "FORWARD"), ("bwd", "BACKWARD")):
                mine = rows[rows["op"] == op]
                for end in "start", "end":
                    of[f"{name}_{end}"] = (slow * 1e3 * (mine[f"{end}_s"] - since)).tolist()
            written[str(number)] = of
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(written))
    return folder


def megatron_app(trace: pk.Trace, path: Path) -> Path:
    """Write a run as MegatronApp does: pairs of events, chunk and microbatch on the second."""
    events: list[dict[str, Any]] = []
    end = 1e6 * trace.makespan_s
    for worker in range(trace.workers):
        for name, at in (("iteration begin", 0.0), ("iteration end", end)):
            args = {"iteration": 0}
            events.append({"name": name, "ph": "i", "ts": at, "pid": worker, "args": args})
    for row in passes(trace).to_dict("records"):
        about = {"iteration": 0, "microbatch": row["microbatch"]}
        about["model_chunk"] = row["stage"] // trace.workers
        common = {"name": row["op"].lower(), "pid": row["worker"], "tid": 0}
        events.append(common | {"ph": "B", "ts": 1e6 * row["start_s"], "args": {"iteration": 0}})
        events.append(common | {"ph": "E", "ts": 1e6 * row["end_s"], "args": about})
    path.write_text(json.dumps(sorted(events, key=lambda event: event["ts"])))
    return path


def kineto(trace: pk.Trace, folder: Path, off_s: float = 0.0, *, waits: bool = False) -> Path:
    """Write a run as torch.profiler does: a file a rank, the clock of rank 1 off by some time.

    With waits each span begins where the one before it ends, as torch's own labels do.
    """
    letters = {op.name: op.letter for op in OPS}
    folder.mkdir(parents=True, exist_ok=True)
    for rank, rows in (with_waits(trace.frame) if waits else trace.frame).groupby("worker"):
        events = [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"PP:{row['stage']}{letters[row['op']]}{row['microbatch']}"
                if row["op"] != "UPDATE"
                else "Optimizer.step#SGD.step",
                "ts": 1e6 * (row["start_s"] + off_s * (rank == 1)),
                "dur": 1e6 * (row["end_s"] - row["start_s"]),
            }
            for row in rows.to_dict("records")
        ]
        about = {"rank": rank, "world_size": trace.workers}
        written = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(written))
    return folder


def bytedance(traces: list[pk.Trace], path: Path) -> Path:
    """Write replicas of a run as ByteDance does, with the operations behind the passes."""
    rows: list[tuple[Any, ...]] = []
    last = max(trace.makespan_s for trace in traces)
    for replica, trace in enumerate(traces):
        assert trace.transfers is not None
        homes = [
            (replica, stage, replica * trace.workers + stage) for stage in range(trace.workers)
        ]
        for row in passes(trace).itertuples():
            times = row.start_s, row.end_s
            optype = f"{row.op.lower()}-compute"
            rows.append((*homes[row.worker], optype, *times, row.microbatch, row.stage))
        for home in homes:
            rows.append((*home, "grads-reduce-scatter", trace.makespan_s, last + 0.003, -1, -1))
            rows.append((*home, "optimizer", last + 0.003, last + 0.004, -1, -1))
        for sent in trace.transfers.itertuples():
            way = "forward" if sent.purpose == "activation" else "backward"
            for end, worker in (("send", sent.source), ("recv", sent.destination)):
                times = sent.start_s, sent.end_s
                rows.append((*homes[worker], f"{way}-{end}", *times, -1, -1))
    names = ["dp_rank", "stage", "rank", "optype", "start_ts", "end_ts", "mb_id", "gmc"]
    table = pd.DataFrame(rows, columns=names).assign(step=7, mc=0)
    table["duration"] = table.pop("end_ts") - table["start_ts"]
    table.to_parquet(path)
    return path
