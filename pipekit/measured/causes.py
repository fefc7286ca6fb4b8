"""What cost a recorded run its time: cases without one thing each, and what they save."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from pipekit.measured.messages import Numbers, packed, small
from pipekit.measured.operations import MESSAGES, Operations, Times
from pipekit.measured.recognition import Recognition, named
from pipekit.measured.waits import lengths
from pipekit.measured.what_if import OPTIMIZER, WhatIf
from pipekit.names import METHODS
from pipekit.schedules import Op, Payload, Schedule
from pipekit.schedules.clock import Walk, graph_needs
from pipekit.traces import RECOMPUTE, Trace
from pipekit.traces.record import events_of
from pipekit.units import SECONDS, written

_SLOW_LINK = 1.5  # a link is slow if its messages take over so many times the median link's
_PAUSE = 4.0  # median deviations beyond which a pass counts as if it were so far off
_BY_CHANCE = 5.0  # standard errors by which means of two pipelines differ by chance

Where = dict[str, object] | None


@dataclass(frozen=True)
class Counterfactual:
    """Something that cost time, and what a run without it would save."""

    kind: str  # one of KINDS
    where: Where  # {"worker": 3}, {"stage": 3}, {"link": (0, 1)}, or None
    saves_s: float  # a step
    text: str  # a sentence
    # Of each operation without it; None if these are others, of which there is a step.
    seconds: Times | None = field(default=None, repr=False, compare=False)
    step: Trace | None = field(default=None, repr=False, compare=False)


BETWEEN_STEPS = "between steps"
KINDS = (
    *("slow worker", "unequal stages", "slow last stage", "unequal microbatches"),
    *("links", "method", BETWEEN_STEPS, "noise"),
)

SLOW = frozenset({"slow worker", "unequal stages", "slow last stage"})
"""Kinds that may be the same passes, told otherwise."""

Case = tuple[str, Where, str, Times]  # a Counterfactual's kind, where, text and seconds


def causes(what_if: WhatIf, recognition: Recognition) -> list[Counterfactual]:
    """Return what cost time, what saves most first."""
    recorded, beside = what_if.simulated_s, _beside_peers(what_if.pass_rows)
    cases = [*_slow(what_if, beside), *_microbatches(what_if, beside), *_links(what_if)]
    without = what_if.step_s(*(case[3] for case in cases))
    found = [
        Counterfactual(kind, where, recorded - t, text, case)
        for (kind, where, text, case), t in zip(cases, without, strict=True)
    ]
    found += _other_method(what_if, recognition)
    inside = what_if.passes | what_if.messages
    alone = np.where(inside, what_if.seconds, 0.0)
    saves_s = recorded - what_if.mean_step(alone[:, None])[0]
    text = "Sums of gradients, the optimizer and what lies between steps take time"
    found.append(Counterfactual(BETWEEN_STEPS, None, saves_s, text, alone))
    found = [cause for cause in found if cause.saves_s > 1e-9 * recorded]
    return sorted(found, key=lambda cause: -cause.saves_s)


def _slow(what_if: WhatIf, by_worker: pd.Series) -> Iterator[Case]:
    """Where a worker and its stage are the same passes, its updates say which of them is slow.

    Without peers a worker is as slow as the least slow of its stages, and makes none of them heavy.
    """
    passes, rows = what_if.passes, what_if.pass_rows
    by_stage = _over_median(rows, "stage")
    if by_worker.isna().any():
        by_worker = _over_median(rows, "worker", "stage").groupby("worker").min()
    homes = len(pd.unique(packed(rows["stage"], rows["worker"])))
    one_each = homes == len(by_stage) == len(by_worker)
    worker, times = int(by_worker.idxmax()), by_worker.max()
    tells = _updates_tell(what_if, worker, times - 1)
    if times > 1 and (tells or not one_each):
        slow = passes | what_if.among(*OPTIMIZER) if tells else passes
        here = (what_if.worker == worker) & slow
        text = f"Worker {worker} takes {times - 1:.0%} longer than the others"
        seconds = np.where(here, what_if.seconds / times, what_if.seconds)
        yield "slow worker", {"worker": worker}, text, seconds
        if one_each:
            return
        if times - 1 > (by_stage[rows["stage"][rows["worker"] == worker]].max() - 1) / 2:
            by_stage = _over_median(rows.assign(seconds=seconds[passes]), "stage")
    last = int(by_stage.index.max())
    others = by_stage.drop(last) if by_stage[last] > 1 else by_stage
    or_worker = " or its worker" if one_each and not what_if.among(*OPTIMIZER).any() else ""
    for kind, slow, text in (
        ("unequal stages", others, f"Stage {others.idxmax()}"),
        ("slow last stage", by_stage[[last]], "The last stage"),
    ):
        stage, times = int(slow.idxmax()), slow.max()
        text += f"{or_worker} takes {times - 1:.0%} longer than the median stage"
        if times > 1:
            usual = np.ones(what_if.stage.max() + 1)
            usual[slow.index] = slow.where(slow > 0, 1.0)
            seconds = what_if.seconds / np.where(passes, usual[what_if.stage], 1.0)
            yield kind, {"stage": stage}, text, seconds


def _beside_peers(rows: pd.DataFrame) -> pd.Series:
    """Return by worker how many times as long it takes as others with its stages, NaN without any.

    If all workers of a pipeline take longer, its microbatches do, unless that is far more than the
    means of so many microbatches differ by chance.
    """
    usual = rows.groupby(["stage", "kind", "worker"])["seconds"].median().unstack()
    usual = usual[usual.notna().sum(axis=1) > 1]
    if usual.empty:
        return pd.Series(np.nan, usual.columns)
    ratio = usual.div(_median(usual, axis=1), axis=0).mean(axis=0)
    ratio /= _median(ratio)  # over 1 on all workers if two pipelines meet on each
    own = packed(rows["kind"], rows["stage"], rows["worker"])
    relative = rows["seconds"] / rows["seconds"].groupby(own).transform("mean")
    each = relative.groupby(_microbatch(rows)).mean()
    error = each.std() / np.sqrt(len(each) / rows["replica"].nunique())
    whole = ratio.groupby(rows.groupby("worker")["replica"].first()).transform(_median)
    return ratio / whole.where(abs(whole - 1) <= _BY_CHANCE * error, 1.0)


def _microbatch(rows: pd.DataFrame) -> Numbers:
    return packed(rows["step"], rows["replica"], rows["microbatch"])


def _median(values: Any, axis: int = 0) -> Any:
    """Return the lower median, so that one of two can be slow."""
    return np.nanquantile(values, 0.5, axis=axis, method="lower")


def _over_median(rows: pd.DataFrame, *owner: str) -> pd.Series:
    """Return by owner its seconds over those that its passes take at the median owner of each.

    It is that of means without pauses: of few passes that vary, the median is less sure.
    """
    keys = [rows[name] for name in (*owner, "kind")]
    median = rows["seconds"].groupby(keys).transform("median")
    most = _PAUSE * (rows["seconds"] - median).abs().groupby(keys).transform("median")
    each = rows["seconds"].clip(median - most, median + most).groupby(keys)
    usual, count = each.mean().unstack(), each.size().unstack()
    return (usual * count).sum(axis=1) / (count * _median(usual)).sum(axis=1)


def _updates_tell(what_if: WhatIf, worker: int, excess: float) -> bool:
    """Whether a worker's updates take longer, too, as a heavy stage's need not."""
    updates = what_if.among(*OPTIMIZER)
    seconds = pd.Series(what_if.seconds[updates])
    usual = seconds.groupby(what_if.worker[updates]).median()
    others = usual[usual.index != worker].median()
    return bool(worker in usual and others > 0 and usual[worker] / others - 1 > excess / 2)


def _microbatches(what_if: WhatIf, beside: pd.Series) -> Iterator[Case]:
    """Passes of one microbatch vary alike if it is longer, and each by itself if it is noise.

    The mean of its kind and stage is what a pass usually takes, as long as its worker is slow.
    """
    passes, rows = what_if.passes, what_if.pass_rows
    own = packed(rows["kind"], rows["stage"], rows["worker"])
    seconds = rows["seconds"] / rows["worker"].map(beside).fillna(1.0)
    of_stage = seconds.groupby(packed(rows["kind"], rows["stage"])).transform("mean")
    relative = (seconds / of_stage).fillna(1.0)
    length = lengths(relative, _microbatch(rows))
    usual = (relative / length).groupby(own).transform("median")

    def taking(times: pd.Series) -> Times:
        found = what_if.seconds.copy()
        found[passes] *= times.to_numpy()
        return found

    text = f"Microbatches are unequal: their times vary by {length.std():.0%}"
    yield "unequal microbatches", None, text, taking(1 / length)
    spread = (relative - length).std()
    text = f"Passes of one kind and stage vary by {spread:.0%} from one to the next"
    yield "noise", None, text, taking(usual * length / relative.clip(lower=1e-9))


def _links(what_if: WhatIf) -> Iterator[Case]:
    """If no link is slow, messages take no time."""
    everything, passes, sent = what_if.seconds, what_if.passes, what_if.messages
    if not sent.any():
        return
    replica, stage, worker = what_if.replica, what_if.stage, what_if.worker
    workers = int(worker.max()) + 1
    home = np.full((replica.max() + 1, stage.max() + 3), np.nan)  # of stages -2 and -1, too
    home[replica[passes], stage[passes]] = worker[passes]
    ahead = what_if.among(*(name for name in MESSAGES if Payload.ACTIVATION.value in name))
    ends = stage[sent], stage[sent] + np.where(ahead[sent], 1, -1)
    one, other = (home[replica[sent], each] for each in ends)
    link = np.asarray(np.fmin(one, other) * workers + np.fmax(one, other), np.int64)
    median = pd.Series(everything[sent]).groupby(link).median()
    typical = float(_median(median))
    slow = median[median > _SLOW_LINK * typical]
    if slow.empty:
        yield "links", None, "Messages take time", np.where(sent, 0.0, everything)
        return
    seconds = everything.copy()
    seconds[sent] *= pd.Series(link).map(typical / slow).fillna(1.0)
    low, high = divmod(int(slow.idxmax()), workers)
    more = f" (slow links: {len(slow)})" if len(slow) > 1 else ""
    took, usual = (written(seconds, SECONDS) for seconds in (float(slow.max()), typical))
    text = f"Messages between workers {low} and {high} take {took}, on the median link {usual}"
    yield "links", {"link": (low, high)}, text + more, seconds


def _other_method(what_if: WhatIf, recognition: Recognition) -> Iterator[Counterfactual]:
    """The method that saves most flushes and has the same stages on the same workers.

    Each kind of pass takes its mean of the recording, as do messages.
    """
    if recognition.chunks > 1 or not (recognition.schedule and recognition.schedule.is_closed):
        return  # parts of a sequence wait for one another, as no other method's microbatches do
    count, moves = recognition.microbatches, what_if.seconds[what_if.messages]
    passes = _mean_passes(what_if)
    sent = float(moves.mean()) if len(moves) else 0.0
    own = recognition.schedule.before(count)
    tried = [("", own)]
    for name in METHODS:
        schedule = named(name, recognition.stages, count)
        if schedule and schedule.is_closed and schedule.stage_workers == own.stage_workers:
            tried.append((name, schedule.before(count)))
    replays = [_replayed(schedule, passes, sent) for _, schedule in tried]
    takes = [float(ends.max() - starts.min()) for starts, ends in replays]
    best = int(np.argmin(takes))
    if best and takes[0] < np.inf:
        name, schedule = tried[best]
        frame = events_of(schedule, *replays[best])
        frame = frame.sort_values(["worker", "start_s"], kind="stable", ignore_index=True)
        step = Trace(frame, "simulated", name, schedule.worker_count)
        text = f"The method leaves workers idle longer than {name} would with these durations"
        yield Counterfactual("method", None, takes[0] - takes[best], text, step=step)


def _mean_passes(operations: Operations) -> dict[tuple[str, int], float]:
    """Return seconds by kind and stage; a forward run again is part of the backward behind it."""
    rows = operations.pass_rows.assign(number=~operations.among(RECOMPUTE)[operations.passes])
    rows = rows.take(np.argsort(small(packed(rows["step"], rows["worker"])), kind="stable"))
    kind = rows["kind"].where(rows["number"], rows["kind"].shift(-1, fill_value=0))
    each = rows.groupby([kind, "stage"])[["seconds", "number"]].sum()
    means = (each["seconds"] / each["number"]).items()
    return {(operations.kinds[kind], stage): mean for (kind, stage), mean in means}


def _replayed(
    schedule: Schedule, passes: dict[tuple[str, int], float], sent: float
) -> tuple[Times, Times]:
    graph = schedule.dependencies
    home = graph.worker_of
    seconds = [
        0.0 if task.op is Op.UPDATE else passes.get((task.op.name, task.stage), np.inf)
        for task in graph.tasks
    ]
    needs = [
        tuple((n, sent if n >= 0 and home[n] != home[at] else 0.0) for n, _ in each)
        for at, each in enumerate(graph_needs(graph))
    ]
    walk = Walk([range(*each) for each in pairwise(graph.first)], seconds, needs).run()
    return np.array(walk.starts), np.array(walk.ends[: len(seconds)])
