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


def is_it(path: Path) -> bool:
    """Return whether a file's events are MegatronApp's."""
    return is_json(path) and any(
        "model_chunk" in (event.get("args") or {}) for event in events(path)[:200]
    )


def read(path: Path) -> Recording:
    """Read all ranks of a file."""
    rows, began = [], dict[int, float]()
    iterations: dict[str, dict[int, list[float]]] = {"iteration begin": {}, "iteration end": {}}
    found = sorted(events(path), key=lambda event: event.get("ts", 0))
    ranks = sorted({event["pid"] for event in found if event.get("name") in _OPS})
    for event in found:
        name, rank, args = event.get("name"), event["pid"], event.get("args") or {}
        if name in iterations:
            iterations[name].setdefault(args["iteration"], []).append(event["ts"] / 1e6)
        elif name in _OPS and event["ph"] == "B":
            began[rank] = event["ts"] / 1e6
        elif name in _OPS and event["ph"] == "E" and rank in began:
            rows.append(_pass(event, ranks.index(rank), len(ranks), began.pop(rank)))
    frame = pd.DataFrame(rows)
    require_sound(path, frame)
    begin, end = (pd.Series(iterations[each]) for each in ("iteration begin", "iteration end"))
    whole = [
        s for s in begin.index if s in end.index and len(end[s]) == len(begin[s]) == len(ranks)
    ]
    cut = sorted(set(frame["step"]) - set(whole))
    return Recording(
        frame[frame["step"].isin(whole)],
        path.stem,
        len(ranks),
        steps=pd.DataFrame(
            {
                "step": whole,
                "start_s": [min(begin[step]) for step in whole],
                "end_s": [max(end[step]) for step in whole],
            }
        ),
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
