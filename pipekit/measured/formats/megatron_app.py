"""MegatronApp's Chrome events: a list, one process a pipeline rank, several model chunks each.

Format: github.com/OpenSQZ/MegatronApp (MegaDPP), profiling/*-pp-aggregated.json.  A span is a pair
of events B and E; the E names microbatch and chunk.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from pipekit.measured.formats.recording import Recording, events, files

SIGN = "JSON events with microbatch and model_chunk"
_OPS = {"forward": "FORWARD", "backward": "BACKWARD"}
_MARKS = {"iteration begin": "start_s", "iteration end": "end_s"}


def is_it(path: Path) -> bool:
    """Return whether a file's events are MegatronApp's."""
    return any(
        "model_chunk" in (event.get("args") or {}) for file in files(path) for event in events(file)
    )


def read(path: Path) -> Recording:
    """Read all ranks of a file, or of a folder."""
    rows, marks, began = [], [], dict[tuple[Any, Any], float]()
    found = [event for file in files(path) for event in events(file)]
    found = [event for event in found if event.get("name") in (*_OPS, *_MARKS)]
    pids = sorted({event["pid"] for event in found if event["name"] in _OPS})
    worker = {pid: number for number, pid in enumerate(pids)}
    ends = (event for event in found if event["ph"] == "E")
    ranks = {event["pid"]: event["args"].get("pp_rank", event["pid"]) for event in ends}
    stages_a_chunk = 1 + max(ranks.values(), default=0)
    for event in sorted(found, key=lambda event: event["ts"]):
        name, pid, at_s, args = event["name"], event["pid"], event["ts"] / 1e6, event["args"]
        if name in _MARKS and pid in worker:
            marks.append({"step": args["iteration"], "worker": worker[pid], _MARKS[name]: at_s})
        elif event["ph"] == "E" and (name, pid) in began:
            rows.append(
                {
                    "worker": worker[pid],
                    "stage": args["model_chunk"] * stages_a_chunk + ranks[pid],
                    "kind": _OPS[name],
                    "microbatch": args["microbatch"],
                    "step": args["iteration"],
                    "start_s": began.pop((name, pid)),
                    "end_s": at_s,
                }
            )
        elif event["ph"] == "B":
            began[name, pid] = at_s
    if not marks:
        return Recording(pd.DataFrame(rows), path.stem, len(worker))
    steps = pd.DataFrame(marks, columns=["step", "worker", *_MARKS.values()])
    steps = steps.groupby(["step", "worker"], as_index=False).first().dropna()
    steps = steps[steps.groupby("step")["step"].transform("size") == len(worker)]
    frame = pd.DataFrame(rows)
    cut = sorted(set(frame["step"]) - set(steps["step"]))
    return Recording(
        frame[frame["step"].isin(steps["step"])],
        path.stem,
        len(worker),
        steps,
        notes=tuple(f"iteration {step} is cut off and left out" for step in cut),
    )
