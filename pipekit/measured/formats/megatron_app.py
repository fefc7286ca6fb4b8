"""MegatronApp's Chrome events: a list, one process a pipeline rank, several model chunks each.

Format: github.com/OpenSQZ/MegatronApp (MegaDPP), profiling/*-pp-aggregated.json.  A span is a pair
of events B and E; the E names microbatch and chunk, and the file's name how many ranks there are.
"""

import re
from pathlib import Path

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
    found = [event for file in files(path) for event in events(file)]
    found = [event for event in found if event.get("name") in (*_OPS, *_MARKS)]
    if not found:
        return Recording(pd.DataFrame(), path.stem, 0)
    table = pd.json_normalize(found)
    table.columns = table.columns.str.removeprefix("args.")
    table["at_s"] = pd.to_numeric(table["ts"], errors="coerce") / 1e6
    table = table.sort_values("at_s", kind="stable")
    is_pass = table["name"].isin(_OPS)
    pids = sorted(set(table.loc[is_pass, "pid"]))
    began = table.groupby(["name", "pid"])[["ph", "at_s"]].shift()
    spans = table[is_pass & (table["ph"] == "E") & (began["ph"] == "B")]
    rank = spans.get("pp_rank", spans["pid"]).fillna(spans["pid"])
    ranks, named = 1 + rank.max(), re.search(r"pipeline-(\d+)", path.stem)
    if named and ranks < int(named[1]):
        raise ValueError(f"{path} has {ranks:g} of {named[1]} ranks by its name: add the others")
    rows = pd.DataFrame(
        {
            "worker": spans["pid"].map(pids.index),
            "stage": spans["model_chunk"] * ranks + rank,
            "kind": spans["name"].map(_OPS),
            "microbatch": spans["microbatch"],
            "step": spans["iteration"],
            "start_s": began["at_s"][spans.index],
            "end_s": spans["at_s"],
        }
    )
    marks = table[~is_pass & table["pid"].isin(pids)]
    if marks.empty:
        return Recording(rows, path.stem, len(pids))
    marks = marks.assign(worker=marks["pid"].map(pids.index), name=marks["name"].map(_MARKS))
    steps = marks.pivot_table("at_s", ["iteration", "worker"], "name", "first")
    steps = steps.reindex(columns=[*_MARKS.values()]).dropna().reset_index()
    steps = steps.rename(columns={"iteration": "step"})
    whole = steps.groupby("step")["step"].transform("size") == len(pids)
    return Recording(rows, path.stem, len(pids), steps[whole])
