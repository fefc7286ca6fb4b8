"""What PipeDream keeps for how long: versions, activations, gradients (sections 3.4, 3.5 and 4)."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from experiments.pipedream.staleness.study import Study
from experiments.pipedream.staleness.versions import LONG, METHODS, STAGES, STASHING, SYNCED
from experiments.recorded.findings import Finding
from experiments.study.traces import EQUAL_SLOTS, memory_of
from pipekit.engine import Run, Watch
from pipekit.schedules import Op, Schedule, Task, check
from pipekit.schedules.lowering.weight_slots import weight_slots
from pipekit.traces import Trace
from pipekit.traces.memory import Memory


def nothing_older_is_kept(schedule: Schedule) -> bool:
    """Return whether, after each task, only the newest version and those read later are alive."""
    for tasks in schedule.workers:
        newest = 0
        for position, alive in enumerate(weight_slots(tasks).alive):
            if tasks[position].op is Op.UPDATE:
                newest = tasks[position].version
            later = {t.version for t in tasks[position + 1 :] if t.op is not Op.UPDATE}
            if alive != len({newest} | {version for version in later if version <= newest}):
                return False
    return True


def discards(tasks: Sequence[Task]) -> Iterator[tuple[int, int, int | None]]:
    """Yield (version, position of its last reader, position of the update that overwrites it).

    Of each version that a worker of one stage ever reads; the position is None if it stays.
    """
    slots = weight_slots(tasks).slots
    home = {0: 0} | {
        task.version: slot for task, slot in zip(tasks, slots, strict=True) if task.op is Op.UPDATE
    }
    for version in sorted({task.version for task in tasks if task.op is not Op.UPDATE}):
        readers = [i for i, t in enumerate(tasks) if t.op is not Op.UPDATE and t.version == version]
        overwritten = (
            i
            for i, t in enumerate(tasks)
            if t.op is Op.UPDATE and t.version > version and slots[i] == home[version]
        )
        yield version, readers[-1], next(overwritten, None)


def discarded_after_fresher_backward(schedule: Schedule) -> tuple[bool, bool]:
    """Return whether every version outlives its last reader, and whether a fresher backward too.

    The second is section 4's sentence: "Parameter data is only discarded once a backward pass that
    uses fresher parameters is performed."
    """
    safe = literal = True
    for tasks in schedule.workers:
        for version, last_reader, overwritten in discards(tasks):
            if overwritten is None:
                continue
            fresher = any(
                task.op is Op.BACKWARD and task.version > version for task in tasks[:overwritten]
            )
            safe, literal = safe and overwritten > last_reader, literal and fresher
    return safe, literal


def backward_states(trace: Trace, stages: int) -> list[int]:
    """Return the most gradients of activations on each stage of a straight pipeline at once.

    A gradient is there from the end of the next stage's backward to the end of the stage's own; on
    the output stage, while its own backward runs.
    """
    passes = trace.frame.query("op == 'BACKWARD'").set_index(["stage", "microbatch"])
    most = []
    for stage in range(stages):
        own = passes.loc[stage]
        begins = passes.loc[stage + 1]["end_s"] if stage + 1 < stages else own["start_s"]
        changes = sorted(
            [(when, 1) for when in begins.tolist()] + [(when, -1) for when in own["end_s"].tolist()]
        )
        now, peak = 0, 0
        for _, change in changes:
            now += change
            peak = max(peak, now)
        most.append(peak)
    return most


def high_water_growth(memory: Memory, warm_up: float) -> float:
    """Return by how much any worker's most bytes rise after a share of the run's time."""
    frame = memory.frame.assign(total=memory.total)
    start, end = frame["time_s"].min(), frame["time_s"].max()
    warm = frame["time_s"] <= start + warm_up * (end - start)
    before = frame[warm].groupby("worker")["total"].max()
    after = frame[~warm].groupby("worker")["total"].max()
    return float((after / before).max() - 1)


def counts(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Return versions and minibatches in flight on each stage: by the table, and by the engine."""
    reports = {name: check(run.schedule) for name, run in runs.items()}
    return pd.DataFrame(
        {
            "versions (exact)": {name: each.peak_versions for name, each in reports.items()},
            "versions (measured)": {name: run.weight_slots for name, run in runs.items()},
            "in flight (exact)": {name: each.peak_in_flight for name, each in reports.items()},
            "in flight (measured)": {name: run.peak_in_flight for name, run in runs.items()},
        }
    )


def count_findings(table: pd.DataFrame) -> list[Finding]:
    """Return what :func:`counts` says of section 3.4, and that nothing older is kept."""
    said = "measured on the engine as well: {}".format
    versions, measured = table["versions (exact)"], table["versions (measured)"]
    last = [[int(of[name][-1]) for name in (SYNCED, STASHING)] for of in (versions, measured)]
    flying, also = (table.loc[STASHING, f"in flight ({how})"] for how in ("exact", "measured"))
    deleted = nothing_older_is_kept(METHODS[SYNCED].take(LONG))
    return [
        Finding.exact("pipedream-stash-count", versions[STASHING], said(measured[STASHING])),
        Finding.exact("pipedream-mem-intermediate-by-stage", flying, said(also)),
        Finding.exact("pipedream-vsync-more-state", last[0], said(last[1])),
        Finding.exact("pipedream-vsync-delete-old", deleted),
    ]


def lifetime_findings() -> list[Finding]:
    """Return when versions are discarded, and how many gradients of activations a stage has."""
    table = METHODS[STASHING].take(LONG)
    safe, literal = discarded_after_fresher_backward(table)
    states = backward_states(Trace.from_schedule(table, EQUAL_SLOTS), STAGES)
    rule = (
        f"a version outlives its last reader: {safe}; but it is overwritten right after that "
        "backward, one backward earlier than section 4 says"
    )
    both = (
        "a version is discarded once a backward with fresher parameters is done (4), which takes "
        "n-s+2 versions on stage s of n; section 3.4 deletes it at once, and counts n-s+1"
    )
    gradients = (
        f"gradients of activations on a stage at once, stages 1 to 4: {states}; the forward's "
        f"state stays to its backward: {check(table).peak_in_flight} in flight"
    )
    return [
        Finding.exact("pipedream-param-discard-rule", literal, rule).contradicted(both),
        Finding.exact("pipedream-intermediate-lifetimes", max(states), gradients),
    ]


def followed(study: Study, minibatches: int) -> Memory:
    """Train by PipeDream for so many minibatches at least, and return the bytes over time."""
    batches = [*study.batches] * -(-minibatches // len(study.batches))
    return memory_of(
        study.pipeline(METHODS[STASHING]).train(batches, watch=Watch(memory=True)).trace
    )


def allocation_finding(memory: Memory) -> Finding:
    """Return by how much a run's high-water mark rises after its first 30 %."""
    note = (
        "bytes of all tensors that a worker holds (weights, gradients, activations), highest "
        "after the first 30 % of the run against highest before"
    )
    growth = high_water_growth(memory, warm_up=0.3)
    return Finding.measured("pipedream-static-allocation", growth, note, "memory.svg")
