"""MegatronApp's Chrome events: a list, one process a pipeline rank, several model chunks each.

Format: github.com/OpenSQZ/MegatronApp (MegaDPP), profiling/*-pp-aggregated.json.  A span is a pair
of events B and E; the E names microbatch and chunk.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from pipekit.measured.formats.columns import require_sound
from pipekit.measured.formats.json_events import events, is_json
from pipekit.measured.recording import Recording

SIGN = "JSON events with microbatch and model_chunk"
_OPS = {"forward": "FORWARD", "backward": "BACKWARD"}
_MARKS = {"iteration begin": "start_s", "iteration end": "end_s"}


def is_it(path: Path) -> bool:
    """Return whether a file's events are MegatronApp's."""
    return is_json(path) and any(
        "model_chunk" in (event.get("args") or {}) for event in events(path)[:200]
    )


def read(path: Path) -> Recording:
    """Read all ranks of a file."""
    rows, marks, began = [], [], dict[tuple[Any, Any], float]()
    found = sorted(events(path), key=lambda event: event.get("ts", 0))
    ranks = sorted({event["pid"] for event in found if event.get("name") in _OPS})
    for event in found:
        name, at_s = event.get("name"), event.get("ts", 0) / 1e6
        key = name, event.get("pid")
        if name in _MARKS and event["pid"] in ranks:
            step, worker = event["args"]["iteration"], ranks.index(event["pid"])
            marks.append({"step": step, "worker": worker, _MARKS[name]: at_s})
        elif name in _OPS and event["ph"] == "B":
            began[key] = at_s
        elif name in _OPS and event["ph"] == "E" and key in began:
            rows.append(_pass(event, ranks.index(event["pid"]), len(ranks), began.pop(key)))
    frame = pd.DataFrame(rows)
    require_sound(path, frame)
    if not marks:
        return Recording(frame, path.stem, len(ranks))
    steps = pd.DataFrame(marks, columns=["step", "worker", *_MARKS.values()])
    steps = steps.groupby(["step", "worker"], as_index=False).first().dropna()
    steps = steps[steps.groupby("step")["step"].transform("size") == len(ranks)]
    cut = sorted(set(frame["step"]) - set(steps["step"]))
    return Recording(
        frame[frame["step"].isin(steps["step"])],
        path.stem,
        len(ranks),
        steps=steps,
        notes=tuple(f"iteration {step} is cut off and left out" for step in cut),
    )


def _pass(event: dict[str, Any], worker: int, workers: int, start_s: float) -> dict[str, Any]:
    args = event["args"]
    return {
        "worker": worker,
        "stage": args["model_chunk"] * workers + worker,
        "op": _OPS[event["name"]],
        "microbatch": args["microbatch"],
        "step": args["iteration"],
        "start_s": start_s,
        "end_s": event["ts"] / 1e6,
    }
