"""Which version of the weights a minibatch reads, by the tables alone (PipeDream, section 3.4)."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from experiments.recorded.findings import Finding
from experiments.study.traces import EQUAL_SLOTS
from pipekit import plots
from pipekit.schedules import Op, Schedule, model_parallel, pipedream
from pipekit.traces import Trace

STAGES = 4
"""As in Figure 8, one machine each."""

SGD, NAIVE, STASHING, SYNCED = "no pipelining", "no stashing", "stashing", "vertical sync"

METHODS: Mapping[str, Schedule] = {
    SGD: model_parallel(STAGES),
    NAIVE: pipedream(STAGES, stashing=False),
    STASHING: pipedream(STAGES),
    SYNCED: pipedream(STAGES, vertical_sync=True),
}
"""By name."""

PIPELINED = NAIVE, STASHING, SYNCED

LONG = 16
"""Minibatches of a table whose versions are looked at: enough for its steady state."""

FIFTH = 4
"""The minibatch that the paper calls 5."""


def versions(schedule: Schedule, op: Op, minibatch: int) -> list[int]:
    """Return the version that each stage reads for a pass of a minibatch (both from 0)."""
    found = {
        task.stage: task.version
        for tasks in schedule.workers
        for task in tasks
        if task.op is op and task.microbatch == minibatch
    }
    return [found[stage] for stage in range(schedule.stages)]


def interleaved_updates(schedule: Schedule, minibatch: int) -> list[int]:
    """Return, for each stage of a straight pipeline, the updates between a minibatch's F and B."""
    counts = []
    for tasks in schedule.workers:
        begin, end = (
            next(i for i, t in enumerate(tasks) if t.op is op and t.microbatch == minibatch)
            for op in (Op.FORWARD, Op.BACKWARD)
        )
        counts.append(sum(task.op is Op.UPDATE for task in tasks[begin:end]))
    return counts


def versions_of_fifth() -> pd.DataFrame:
    """Return the versions that the paper's minibatch 5 reads, by method and pass."""
    tables = {name: METHODS[name].take(LONG) for name in PIPELINED}
    seen = {
        (name, op.name.lower()): versions(table, op, FIFTH)
        for name, table in tables.items()
        for op in (Op.FORWARD, Op.BACKWARD)
    }
    return pd.DataFrame(seen, index=[f"machine {stage + 1}" for stage in range(STAGES)])


def traces() -> list[Trace]:
    """Return eight minibatches by each pipelined method, in equal slots."""
    return [Trace.from_schedule(METHODS[name].take(8), EQUAL_SLOTS) for name in PIPELINED]


def versions_figure() -> go.Figure:
    """Draw :func:`traces` with the versions that passes read."""
    titles = [
        "No stashing: a backward reads newer weights than its forward",
        "Weight stashing: one version a stage and minibatch",
        "Vertical sync: one version a minibatch",
    ]
    return plots.compare(*traces(), titles=titles, versions=True)


def events() -> pd.DataFrame:
    """Return the events of :func:`traces`, with the method's name."""
    named = zip(PIPELINED, traces(), strict=True)
    return pd.concat([trace.frame.assign(method=name) for name, trace in named])


def same_version_both_ways() -> bool:
    """Return whether every backward reads its forward's version, with stashing and synced."""
    return all(
        versions(table, Op.FORWARD, k) == versions(table, Op.BACKWARD, k)
        for table in (METHODS[name].take(LONG) for name in (STASHING, SYNCED))
        for k in range(LONG)
    )


def findings(fifth: pd.DataFrame) -> list[Finding]:
    """Return what :func:`versions_of_fifth` and the tables say of section 3.4's examples."""
    forward, backward = (fifth[NAIVE, way].iloc[0] for way in ("forward", "backward"))
    naive = bool(forward == 1 and backward == 4)
    note = "forward with version 1 (update 1), backward with version 4 (updates 1 to 4)"
    between = interleaved_updates(METHODS[NAIVE].take(LONG), 8)
    stashed = fifth[STASHING, "forward"].tolist()
    synced = [*fifth[SYNCED, "forward"].tolist(), *fifth[SYNCED, "backward"].tolist()]
    return [
        Finding.exact("pipedream-naive-mb5-stage1", naive, note, "versions.svg"),
        Finding.exact("pipedream-interleaved-updates-by-stage", between),
        Finding.exact("pipedream-stash-mb5-versions", stashed, figure="versions.svg"),
        Finding.exact("pipedream-vsync-mb5-versions", synced, figure="versions.svg"),
    ]
