"""Traces that somebody else recorded, read into the one :class:`pipekit.Trace`."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipekit.measured.clocks import aligned
from pipekit.measured.formats import bytedance, kineto, megatron_app, megatron_timers, primus
from pipekit.measured.formats.json_events import content, is_json
from pipekit.measured.recording import Recording
from pipekit.traces import Trace

_COMPILED = 1.5
"""A first step that takes so many times the median compiled something: it and the next ones, in
which caches and clocks settle, are left out."""
_SETTLING = 3


FORMATS = {
    "ByteDance's Parquet": bytedance,
    "Primus's dumps": primus,
    "MegatronApp's Chrome events": megatron_app,
    "torch.profiler's JSON": kineto,
}
"""The formats of others by name, each with its ``SIGN`` in words, ``is_it`` and ``read``; beside
them pipekit's own, as ``Trace.to_perfetto`` writes it."""


def _is_ours(path: Path) -> bool:
    found = content(path) if is_json(path) else None
    about = found.get("otherData") if isinstance(found, dict) else None
    return isinstance(about, dict) and str(about.get("format", "")).startswith("pipekit trace")


def read_trace(path: str | os.PathLike[str], steps: slice | None = None) -> Trace:
    """Read a recorded trace; its format is recognised by its content.

    Passes are put on one clock and cut into training steps.  If the first step took over 1.5 times
    the median, it and the three behind it are left out; ``notes`` says so.  What a format lacks
    (bytes, weight versions) is absent.

    Args:
        path: a file; or a folder with a file a rank.
        steps: of the recorded step numbers, as a slice does (``slice(5, 21)``), in place of that.

    Raises:
        ValueError: the file is not of a known format, cut off or damaged; the message names it.
        FileNotFoundError: there is no such file.
        OSError: it cannot be opened.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: name a trace's file or folder")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: nothing was recorded")
    if path.is_dir() and not any(path.iterdir()):
        raise ValueError(f"{path} is an empty folder: nothing was recorded")
    if _is_ours(path):
        return Trace.from_perfetto(path)
    for name, each in FORMATS.items():
        if each.is_it(path):
            try:
                recording = each.read(path)
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise ValueError(
                    f"{path} lacks what {name} has: {error!r}; it is damaged, or of a version that "
                    f"is not known"
                ) from None
            return _trace(path, recording, steps)
    if megatron_timers.is_it(path):
        raise ValueError(
            f"{path} has Megatron's timers, which sum up all passes of an iteration, so that no "
            f"pass has a time: see what they say with pipekit explain, or record a trace with "
            f"torch.profiler (docs/why_slow.md)"
        )
    known = "; ".join(f"{name} ({each.SIGN})" for name, each in FORMATS.items())
    raise ValueError(f"{path} is not a trace of a known format: {known}; pipekit's own JSON")


def _trace(path: Path, recording: Recording, chosen: slice | None) -> Trace:
    """Return a recording in order: complete steps, on one clock, one step behind the other."""
    recording, notes = _complete(path, recording)
    recording, left_out = _used(path, recording, chosen)
    recording, clocks = aligned(recording)
    frame, steps = recording.frame, _bounds(recording).reset_index()
    if recording.own_clocks:  # each step begins at 0: put one behind the other
        took = (steps["end_s"] - steps["start_s"]).to_numpy()
        begins = pd.Series(np.cumsum(took) - took, steps["step"])
        frame[["start_s", "end_s"]] += begins.reindex(frame["step"]).to_numpy()[:, None]
        steps = steps.assign(start_s=begins.to_numpy(), end_s=begins.to_numpy() + took)
    return Trace(
        frame.sort_values(["worker", "start_s"], kind="stable", ignore_index=True),
        "published",
        recording.name,
        recording.workers,
        other=recording.other,
        steps=steps.reset_index(drop=True),
        notes=(*recording.notes, *notes, *left_out, *clocks),
    )


def _complete(path: Path, recording: Recording) -> tuple[Recording, list[str]]:
    """Return a recording without the steps in which passes are missing."""
    frame = recording.frame
    keys = ["step", "worker", "stage", "op", "microbatch"]
    if frame.duplicated([*keys, *(["replica"] if "replica" in frame else [])]).any():
        raise ValueError(f"{path} has a pass twice in one step: its steps cannot be told apart")
    if frame["stage"].nunique() < 2:
        raise ValueError(f"{path} has one stage: it is not the trace of a pipeline")
    missing = sorted(set(range(int(frame["stage"].max()))) - set(frame["stage"]))
    if missing:
        raise ValueError(
            f"{path} has no passes of stage {missing[0]}: the file of its rank is missing"
        )
    replica = frame.get("replica", 0)
    passes = frame.assign(replica=replica).groupby(["step", "replica", "microbatch"]).size()
    cut = sorted(set(passes[passes < passes.mode().max()].index.get_level_values("step")))
    if not cut:
        return recording, []
    named = ", ".join(map(str, cut[:5])) + (", ..." if len(cut) > 5 else "")
    return _only(recording, ~frame["step"].isin(cut)), [f"steps {named} lack passes: left out"]


def _used(path: Path, recording: Recording, chosen: slice | None) -> tuple[Recording, list[str]]:
    """Return a recording of the chosen steps; or without those at its beginning that compiled."""
    numbers = np.sort(recording.frame["step"].unique())
    if chosen is not None:
        kept = [n for n in numbers if (chosen.start or 0) <= n < (chosen.stop or np.inf)]
        if not kept:
            raise ValueError(
                f"{path} has no step in {chosen.start}:{chosen.stop}: its steps are "
                f"{numbers[0]} to {numbers[-1]}"
            )
        return _only(recording, recording.frame["step"].isin(kept)), []
    bounds = _bounds(recording).reindex(numbers)
    took = (bounds["end_s"] - bounds["start_s"]).to_numpy()
    if len(numbers) < 3 or took[0] <= _COMPILED * np.median(took):
        return recording, []
    left_out = min(1 + _SETTLING, len(numbers) // 2)
    note = (
        f"steps {numbers[0]} to {numbers[left_out - 1]} are left out as warm-up: the first took "
        f"{took[0]:.3g} s, the median {np.median(took):.3g} s"
    )
    return _only(recording, recording.frame["step"].isin(numbers[left_out:])), [note]


def _bounds(recording: Recording) -> pd.DataFrame:
    """Return start_s and end_s by step."""
    rows = recording.frame if recording.steps is None else recording.steps
    return rows.groupby("step").agg({"start_s": "min", "end_s": "max"})


def _only(recording: Recording, rows: pd.Series) -> Recording:
    """Return a recording with some rows of its passes, and all else of their steps."""
    frame = recording.frame[rows].copy()
    kept = frame["step"].unique()
    steps, other = (
        None if table is None else table[table["step"].isin(kept)].copy()
        for table in (recording.steps, recording.other)
    )
    return replace(recording, frame=frame, steps=steps, other=other)
