"""Traces that somebody else recorded, read into the one :class:`pipekit.Trace`, on one clock."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipekit.measured import messages
from pipekit.measured.formats import bytedance, kineto, megatron_app, megatron_timers, primus
from pipekit.measured.formats.recording import Recording, head, is_json
from pipekit.measured.messages import RULES, among, packed
from pipekit.measured.waits import fitted, sent_in
from pipekit.traces import Trace

_COMPILED = 1.5  # a first step that takes so many times the median compiled something
_SETTLING = 3  # steps behind it, in which caches and clocks settle
_TOLERATED_S = 1e-4  # by which a pass may begin before its input was sent: a clock's own noise
_IDLE = 0.5  # a worker idles before a pass if it does for over this share of what one takes

FORMATS = {
    "ByteDance's Parquet": bytedance,
    "Primus's dumps": primus,
    "MegatronApp's Chrome events": megatron_app,
    "torch.profiler's JSON": kineto,
}
"""The formats of others by name, each with its ``SIGN`` in words, ``is_it`` and ``read``; beside
them pipekit's own, as ``Trace.to_perfetto`` writes it."""


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
    while path.is_dir():  # of folders in one another the innermost counts
        inside = [each for each in path.iterdir() if not each.name.startswith(".")]
        if not inside:
            raise ValueError(f"{path} is an empty folder: nothing was recorded")
        if len(inside) > 1:
            break
        (path,) = inside
    for file in path.rglob("*.json") if path.is_dir() else [path]:
        if not file.stat().st_size:
            raise ValueError(f"{file} is empty: nothing was recorded")
    about = head(path).get("otherData") if is_json(path) else None
    if isinstance(about, dict) and str(about.get("format", "")).startswith("pipekit trace"):
        return Trace.from_perfetto(path)
    for name, each in FORMATS.items():
        if each.is_it(path):
            try:
                recording = each.read(path)
            except (LookupError, TypeError, AttributeError, OverflowError) as error:
                raise ValueError(
                    f"{path} lacks what {name} has: {error!r}; it is damaged, or of a version that "
                    f"is not known"
                ) from None
            if recording.rows.empty:
                raise ValueError(f"{path} has no passes of {name}: nothing was recorded")
            return _trace(path, recording, steps)
    if megatron_timers.is_it(path):
        raise ValueError(
            f"{path} has Megatron's timers, which sum up all passes of an iteration, so that no "
            f"pass has a time: give pipekit explain such logs alone, or record a trace with "
            f"torch.profiler (docs/why_slow.md)"
        )
    known = [f"{name} ({each.SIGN})" for name, each in FORMATS.items()]
    known.append("pipekit's own JSON (trace.perfetto.json of pipekit train --output)")
    known.append("of Megatron-LM's logs explain() sums up timers (--timing-log-level 2)")
    raise ValueError(f"{path} is not a trace of a known format: {'; '.join(known)}")


def _trace(path: Path, recording: Recording, chosen: slice | None) -> Trace:
    notes = list(recording.notes)
    recording = replace(recording, rows=_sound(path, recording.rows))
    recording = _complete(path, recording, notes)
    recording = _used(path, recording, chosen, notes)
    aligned = _aligned(recording, notes)
    recording = _together(aligned, notes, apart=aligned is not recording)
    rows = recording.rows
    by_step = (rows if recording.steps is None else recording.steps).groupby("step")
    steps = by_step.agg({"start_s": "min", "end_s": "max"}).reset_index()
    if recording.steps is None:
        steps["start_s"] -= _between(steps)
    took = (steps["end_s"] - steps["start_s"]).to_numpy()
    if not (took > 0).all():
        raise ValueError(f"{path} has a step of {took.min():g} s: the file is damaged")
    if recording.steps is not None and not (np.diff(steps["start_s"]) > 0).all():  # each from 0
        begins = np.cumsum(took) - took
        at = np.searchsorted(steps["step"], rows["step"])
        shifts = (begins - steps["start_s"].to_numpy())[at]
        rows = rows.assign(start_s=rows["start_s"] + shifts, end_s=rows["end_s"] + shifts)
        steps = steps.assign(start_s=begins, end_s=begins + took)
    is_pass = among(rows["kind"], RULES)
    frame, other = rows[is_pass].drop(columns=["moves", "group"]), rows[~is_pass]
    frame = frame.sort_values(["worker", "start_s"], kind="stable", ignore_index=True)
    return Trace(
        frame.rename(columns={"kind": "op"}),
        "measured",
        recording.name,
        recording.workers,
        other=None if other.empty else other.reset_index(drop=True),
        steps=steps,
        notes=tuple(notes),
    )


def _between(steps: pd.DataFrame) -> pd.Series:
    """Return what lies between each step and the one before it, or as much as usual if unknown."""
    between = (steps["start_s"] - steps["end_s"].shift()).clip(lower=0.0)
    between = between.where(steps["step"].diff() == 1)
    return between.fillna(between.median()).fillna(0.0)


def _sound(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    try:
        rows = rows.astype(dict.fromkeys(("step", "stage", "microbatch"), np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path} has steps, stages or microbatches that are not whole numbers ({error}): the "
            f"file is damaged"
        ) from None
    took = rows["end_s"] - rows["start_s"]
    wrong = ~np.isfinite(rows["start_s"]) | ~np.isfinite(took) | (took < 0)
    if wrong.any():
        row = rows[wrong].iloc[0]
        raise ValueError(
            f"{path}: an operation ({row['kind']}) of worker {row['worker']} begins at "
            f"{row['start_s']:g} s and ends at {row['end_s']:g} s: the file is damaged"
        )
    rows = rows.assign(kind=rows["kind"].astype("category"))
    is_pass = among(rows["kind"], RULES)
    stage = rows["stage"].to_numpy()[is_pass]
    if len(pd.unique(stage)) < 2:
        raise ValueError(
            f"{path} has passes of less than two stages: it is cut off, or not of a pipeline"
        )
    places = rows.loc[is_pass, [name for name in ("replica", "stage", "worker") if name in rows]]
    places = places.drop_duplicates()
    if "replica" not in rows or places.duplicated(["replica", "stage"]).any():
        beside = rows["worker"].map(_pipelines(rows[is_pass])).fillna(0).astype(int)
        rows["replica"] = packed(rows.get("replica", 0), beside)
    number, pipelines = pd.factorize(rows["replica"].to_numpy()[is_pass], sort=True)
    there = np.zeros((len(pipelines), stage.max() + 2), np.bool_)  # the last: of no stage
    there[number, stage] = True
    for pipeline, lacks in np.argwhere(~there[:, :-1])[:1]:
        raise ValueError(
            f"{path} has no passes of stage {lacks} in pipeline {pipelines[pipeline]}: the records "
            f"of its rank are missing"
        )
    return rows.assign(moves=rows.get("moves", False), group=rows.get("group", -1))


def _pipelines(passes: pd.DataFrame) -> pd.Series:
    """Return by worker its pipeline's number: of data or tensor parallel ranks each has its own."""
    passes = passes.sort_values("worker", kind="stable")
    places = (passes[name] for name in ("step", "stage", "microbatch", "replica") if name in passes)
    what = packed(*places, passes["kind"].cat.codes)
    return passes.groupby(what).cumcount().groupby(passes["worker"]).max()


def _complete(path: Path, recording: Recording, notes: list[str]) -> Recording:
    rows, passes = recording.rows, recording.passes
    whose = packed(passes["step"], passes["replica"], passes["microbatch"])
    what = packed(whose, passes["worker"], passes["stage"], passes["kind"].cat.codes)
    if twice := set(passes["step"][pd.Series(what).duplicated().to_numpy()]):
        if twice == set(passes["step"]):
            raise ValueError(f"{path} has a pass twice in one step: its steps cannot be told apart")
        notes.append(f"steps {_named(twice)} have a pass twice, as with an evaluation: left out")
        recording = _only(recording, sorted(set(rows["step"]) - twice))
        return _complete(path, recording, notes)
    # Of some microbatches a backward may be whole, and of others in two parts.
    parts = pd.Series(1 + among(passes["kind"], messages.WHOLE_BACKWARDS), passes.index)
    most = parts.groupby(packed(whose, passes["stage"])).sum().max()
    lacks = parts.groupby(whose).transform("sum") < most * passes["stage"].nunique()
    cut = set(passes["step"][lacks])
    if recording.steps is not None:  # those that were recorded to their end
        cut |= set(rows["step"]) - set(recording.steps["step"])
    if not cut:
        return recording
    if len(cut) == rows["step"].nunique():
        raise ValueError(f"{path} lacks passes in each step: it is cut off, or ranks are missing")
    notes.append(f"steps {_named(cut)} lack passes: left out")
    return _only(recording, sorted(set(rows["step"]) - cut))


def _named(steps: set[int]) -> str:
    return ", ".join(map(str, sorted(steps)[:5])) + (", ..." if len(steps) > 5 else "")


def _used(path: Path, recording: Recording, chosen: slice | None, notes: list[str]) -> Recording:
    numbers = np.sort(recording.rows["step"].unique())
    if chosen is not None:
        kept = [n for n in numbers if n in range(*chosen.indices(int(numbers[-1]) + 1))]
        if not kept:
            raise ValueError(
                f"{path} has no step in {chosen.start or 0}:{chosen.stop}: its steps are "
                f"{numbers[0]} to {numbers[-1]}"
            )
        return _only(recording, kept)
    own = recording.rows.groupby(["step", "worker"])  # clocks may be apart
    took = (own["end_s"].max() - own["start_s"].min()).groupby("step").max().to_numpy()
    if len(numbers) < 3 or took[0] <= _COMPILED * np.median(took):
        return recording
    left_out = min(1 + _SETTLING, len(numbers) // 2)
    notes.append(
        f"steps {numbers[0]} to {numbers[left_out - 1]} are left out as warm-up: the first took "
        f"{took[0]:.3g} s, the median {np.median(took):.3g} s"
    )
    return _only(recording, numbers[left_out:].tolist())


def _only(recording: Recording, kept: list[int]) -> Recording:
    rows, steps = (
        None if table is None else table[table["step"].isin(kept)]
        for table in (recording.rows, recording.steps)
    )
    return replace(recording, rows=rows, steps=steps)


def _aligned(recording: Recording, notes: list[str]) -> Recording:
    """Return a recording on the clock of the first worker, and note what was estimated.

    No pass begins before its input is sent.  So messages to a worker say how much its clock is at
    most ahead, and those back how much it is at most behind; the middle is taken, and half of the
    width is the uncertainty.  If spans contain waits, clocks are fitted together with what passes
    and messages take.  One clock is left alone, unless a pass ends before its input is sent.
    """
    passes, own_clocks = recording.passes, recording.own_clocks
    start, end = (passes[name].to_numpy() for name in ("start_s", "end_s"))
    sent = sent_in(passes)
    idle = _idle(passes)
    waiting = idle.groupby(passes["step"]).any().mean() <= 0.5  # is part of spans
    since = np.where(idle & (not waiting), start, end)
    if not own_clocks and (since[sent["used"]] - sent["sent_s"] > -_TOLERATED_S).all():
        return recording
    clock = passes["step"].to_numpy() * own_clocks
    sent["clock"], link = clock[sent["used"]], ["clock", "link"]
    sent = sent[sent.groupby(link)["toward"].transform("nunique") > 1].reset_index(drop=True)
    if sent.empty:
        notes.append("clocks of workers are apart, which messages of one direction cannot tell")
        return recording
    if not waiting:
        slack = pd.Series(start[sent["used"]] - sent["sent_s"])
        slack = slack.groupby([sent["clock"], sent["link"], sent["toward"]]).min().unstack()
        behind, width = (slack[-1] - slack[1]) / 2, (slack[-1] + slack[1]).abs() / 2
        sent = sent.join(pd.DataFrame({"behind": behind, "within": width, "room": width}), on=link)
    else:
        sent, _, told = fitted(passes, sent, clock)
        sent["room"] = sent["ahead_room"] + sent["behind_room"]
        for kind, alike in passes[~told].groupby("kind", observed=True):
            named = ", ".join(map(str, sorted(set(alike["stage"]))))
            notes.append(
                f"each {kind} of stages {named} waits for its input: its seconds are taken in "
                f"proportion to the other passes (estimated)"
            )
    found = _offsets(sent.drop_duplicates(link))
    offset = {place: ahead for place, (ahead, _) in found.items()}
    up_to, within = (round(max(map(abs, each)), 9) for each in zip(*found.values(), strict=True))
    notes.append(
        f"clocks of workers are aligned by messages: by up to {up_to:.3g} s, to within "
        f"{within:.2g} s (estimated)"
    )
    return _moved(recording, offset)


def _idle(passes: pd.DataFrame) -> pd.Series:
    """Return before which passes a worker idles, between two of a step."""
    by_worker = passes.sort_values("end_s").groupby(["step", "worker"])["end_s"]
    took = passes["end_s"] - passes["start_s"]
    least = took.groupby([passes["worker"], passes["kind"]], observed=True).transform("min")
    return passes["start_s"] - by_worker.shift() > _IDLE * least


def _offsets(links: pd.DataFrame) -> dict[tuple[int, int], tuple[float, float]]:
    """Return by clock and worker what to add to times, and how sure it is, by the surest links."""
    import networkx as nx  # here, since few clocks are apart

    graph, found = nx.Graph(), dict[tuple[int, int], tuple[float, float]]()
    for each in links.to_dict("records"):
        ends = ((each["clock"], each["low"]), (each["clock"], each["high"]))
        graph.add_edge(*ends, **each)
    surest = nx.minimum_spanning_tree(graph, "room")  # messages that are used late tell little
    for workers in nx.connected_components(surest):
        found[first := min(workers)] = 0.0, 0.0
        for here, there in nx.bfs_edges(surest, first):
            link, (offset, width) = surest.edges[here, there], found[here]
            behind = link["behind"] if here < there else -link["behind"]
            found[there] = offset + behind, width + link["within"]
    return found


def _together(recording: Recording, notes: list[str], apart: bool) -> Recording:
    """Return a recording whose pipelines begin their steps together, if their clocks are apart.

    They send one another nothing, and add up their gradients at the end of each step.  Clocks are
    apart if those within a pipeline are, or if steps do not overlap.
    """
    steps = recording.passes.groupby(["step", "replica"])
    begin, end = steps["start_s"].min().unstack(), steps["end_s"].max().unstack()
    overlap = (begin.max(axis=1) <= end.min(axis=1)).all()
    if begin.shape[1] == 1 or (overlap and not apart):
        return recording
    ahead = begin.sub(begin.iloc[:, 0], axis=0).median()
    notes.append(
        f"clocks of pipelines side by side are up to {ahead.abs().max():.3g} s apart: they are "
        f"taken to begin each step together (estimated)"
    )
    homes = recording.rows[["worker", "replica"]].drop_duplicates().to_numpy()
    return _moved(recording, {(0, worker): -ahead[replica] for worker, replica in homes})


def _moved(recording: Recording, offset: dict[tuple[int, int], float]) -> Recording:
    """Return a recording with so much added to times, by step (0: of all) and worker."""

    def moved(table: pd.DataFrame) -> pd.DataFrame:
        keys = zip(table["step"] * recording.own_clocks, table["worker"], strict=True)
        shift = np.array([offset.get(key, 0.0) for key in keys])
        return table.assign(start_s=table["start_s"] + shift, end_s=table["end_s"] + shift)

    steps = recording.steps
    aligned = moved(steps) if steps is not None and "worker" in steps else steps
    return replace(recording, rows=moved(recording.rows), steps=aligned)
