"""A recorded run as operations: which had to end before which could begin, and what each takes.

The rules are those of the replay in "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI 2025), section 3: a worker runs its operations in the recorded order, one stream
beside the other; an operation begins when those before it in its stream and those whose data it
needs have ended; partners of a communication end together, the transfer after the last has begun.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.measured.messages import RULES, SENDING, Numbers, Places, between_workers
from pipekit.schedules import Op, Payload
from pipekit.traces import RECOMPUTE, Trace

Times = NDArray[np.float64]

_ADDING = [name for name, rule in RULES.items() if rule.adds_gradient]
_SENT = {p: [p.value, f"send {p.value}"] for p in Payload}
_RECEIVED = {p: [p.value, f"recv {p.value}"] for p in Payload}
MESSAGES = [name for p in Payload for name in {*_SENT[p], *_RECEIVED[p]}]
_WHOLE = [p.value for p in Payload]
"""Messages that were not recorded."""
COLUMNS = [
    *("step", "worker", "replica", "stage", "kind", "microbatch", "start_s", "end_s"),
    *("moves", "group", "stream"),
]
_WAITED = 0.5
"""A pass waited for its message if its worker was idle for more than this share of the time for
which the message may have been under way."""


@dataclass(frozen=True)
class Operations:
    """All operations of a recorded run, sorted so that a stream's are in their order.

    Attributes:
        table: a row an operation: step, worker, replica, stage, kind (an op of a schedule, the
            payload of a message, or the format's own name), microbatch, start_s, end_s (both from
            the beginning of the step).
        before: [operations, k], the rows that must have ended; the number of operations stands for
            none.
        group: the number of the group that an operation ends with.
        seconds: what each takes by itself: a pass without waiting for its input; of a communication
            the transfer, once all of its group have begun.
        moves: whether it is a communication.
    """

    table: pd.DataFrame
    before: Numbers
    group: Numbers
    seconds: Times
    moves: NDArray[np.bool_]

    @cached_property
    def passes(self) -> NDArray[np.bool_]:
        """Which operations are forwards, also those that are run again, and backwards."""
        kinds = [op for op, rule in RULES.items() if rule.is_pass]
        return np.isin(self.table["kind"], [*kinds, RECOMPUTE])

    @cached_property
    def delays(self) -> Times:
        """Seconds by which each operation began after all that it waits for, as recorded."""
        ends = np.append(self.table["end_s"].to_numpy(), 0.0)
        ready = ends[self.before].max(axis=1)
        late: Times = np.maximum(np.asarray(self.table["start_s"], float) - ready, 0.0)
        return late

    @cached_property
    def recorded_s(self) -> Times:
        """[steps], when the last operation of each step ended."""
        return np.asarray(self.table.groupby("step")["end_s"].max(), float)

    def lasting_s(self, cases: Times, delays: Times | float = 0.0) -> Times:
        """Return when each step's last operation ends, if operations take other times.

        Args:
            cases: [operations, cases], the seconds of each after all that it waits for.
            delays: [operations], how long each begins after all is there.

        Returns:
            [steps, cases], from the beginning of each step.
        """
        ends, plan = self._replayed(cases, delays), self._plan
        return np.maximum.reduceat(ends[plan.last], plan.first_of_step, axis=0)

    def ends_s(self, seconds: Times, delays: Times | float = 0.0) -> Times:
        """Return [operations], when each ends in one case; see :meth:`lasting_s`."""
        ends = np.empty(len(seconds))
        ends[self._plan.order] = self._replayed(seconds[:, None], delays)[:-1, 0]
        return ends

    def _replayed(self, cases: Times, delays: Times | float) -> Times:
        """Return when operations end, in the plan's order, with a row of zeros behind the last."""
        plan = self._plan
        late = np.broadcast_to(np.asarray(delays, float), len(self.table))[plan.order, None]
        takes = cases[plan.order]
        ends = np.zeros((len(self.table) + 1, cases.shape[1]))
        for begin, stop, first, size in plan.levels:
            ready = ends[plan.before[0][begin:stop]]
            for column in plan.before[1:]:
                np.maximum(ready, ends[column[begin:stop]], out=ready)
            ready += late[begin:stop]
            if len(first) < stop - begin:
                ready = np.repeat(np.maximum.reduceat(ready, first, axis=0), size, axis=0)
            np.add(ready, takes[begin:stop], out=ends[begin:stop])
        return ends

    @cached_property
    def _plan(self) -> "_Plan":
        size, groups = len(self.table), int(self.group.max()) + 1
        waits = np.sort(self.before, axis=1)  # none comes last
        waits = waits[:, : max(1, int((waits < size).sum(axis=1).max()))]
        level, of_group = np.zeros(size + 1, np.int64), np.zeros(groups, np.int64)
        while True:
            level[-1] = -1
            of_group[:] = 0
            np.maximum.at(of_group, self.group, level[waits].max(axis=1) + 1)
            if (of_group[self.group] == level[:-1]).all():
                break
            level[:-1] = of_group[self.group]
            if level.max() > size:
                raise ValueError("operations of the recording wait for one another in a circle")
        order = np.lexsort((self.group, level[:-1]))
        place = np.append(np.argsort(order), size)
        bounds = np.flatnonzero(np.diff(level[order], prepend=-1, append=-1))
        levels = []
        for begin, stop in pairwise(bounds.tolist()):
            first = np.flatnonzero(np.diff(self.group[order[begin:stop]], prepend=-1))
            levels.append((begin, stop, first, np.diff([*first, stop - begin])))
        is_last = np.ones(size + 1, np.bool_)
        is_last[waits] = False
        last = np.flatnonzero(is_last[:-1])
        last = last[np.argsort(self.table["step"].to_numpy()[last], kind="stable")]
        steps = self.table["step"].to_numpy()[last]
        columns = [place[column] for column in waits[order].T]
        first_of_step = np.flatnonzero(np.diff(pd.factorize(steps)[0], prepend=-1))
        return _Plan(order, columns, levels, place[last], first_of_step)


class _Plan(NamedTuple):
    """Operations sorted by level: each waits for none of its own level.

    Attributes:
        order: their rows, by level and group.
        before: a column each of what they wait for, as places in that order.
        levels: where each begins and stops; where its groups begin, and how many they have.
        last: places of those that none waits for, by step.
        first_of_step: where in ``last`` each step begins.
    """

    order: Numbers
    before: list[Numbers]
    levels: list[tuple[int, int, Numbers, Numbers]]
    last: Numbers
    first_of_step: Numbers


def operations(trace: Trace) -> Operations:
    """Return the operations of a trace.

    Where messages were not recorded there is one between each two passes of a microbatch that are
    on different workers, behind the one before it on its link; it takes the median of what those at
    its place and on its link take where the receiver waited for them.
    """
    table = _table(trace)
    if not table["kind"].isin(MESSAGES).any():
        table = _with_messages(table)
    place = Places(table)
    kind = table["kind"].to_numpy()
    before = [_in_streams(table)]
    for name, rule in RULES.items():
        if rule.receives:
            here = kind == name
            message = place.of(_RECEIVED[rule.receives], here, -rule.receives.step)
            inside = place.of(SENDING[rule.receives], here, -rule.receives.step)
            before.append(np.where(message < len(table), message, inside))
    for payload in Payload:
        before.append(place.of(SENDING[payload], np.isin(kind, _SENT[payload])))
    before += _sums(table)
    group = table["group"].to_numpy()
    alone = group < 0
    group = np.where(alone, group.max() + 1 + np.cumsum(alone), group)
    moves = table["moves"].to_numpy(bool)
    start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
    stacked = np.stack(before, axis=1)
    latest = np.full(group.max() + 1, -np.inf)
    np.maximum.at(latest, group, start)
    # A span that begins before its input was sent contains the wait for it.
    sent = np.append(np.where(table["kind"].isin(_WHOLE), start, end), 0.0)
    there = np.where(moves, latest[group], sent[stacked[:, 1:]].max(axis=1))
    seconds = np.maximum(end - np.maximum(start, there), 0.0)
    return Operations(table, stacked, np.unique(group, return_inverse=True)[1], seconds, moves)


def _table(trace: Trace) -> pd.DataFrame:
    """Return passes, updates and what else was recorded, from the beginning of each step."""
    tasks = trace.frame[trace.frame["op"].isin([*RULES, RECOMPUTE])]
    parts = [tasks.rename(columns={"op": "kind"}).assign(moves=False, group=-1)]
    if trace.other is not None:
        parts.append(trace.other)
    table = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0].copy()
    for name in "step", "replica":
        if name not in table:
            table[name] = 0
    if trace.steps is not None:
        begins = trace.steps.set_index("step")["start_s"].reindex(table["step"]).to_numpy()
        table[["start_s", "end_s"]] -= begins[:, None]
    table["stream"] = table["kind"].where(table["moves"] & table["kind"].isin(MESSAGES), "")
    keys = ["step", "worker", "stream", "start_s", "end_s"]
    return table.sort_values(keys, kind="stable", ignore_index=True)[COLUMNS]


def _in_streams(table: pd.DataFrame) -> Numbers:
    """Return of each operation the one before it in its stream."""
    lanes = table.groupby(["step", "worker", "stream"], sort=False).ngroup().to_numpy()
    rows = np.arange(len(table))
    return np.where(np.diff(lanes, prepend=-1) != 0, len(table), rows - 1)


def _sums(table: pd.DataFrame) -> list[Numbers]:
    """Return, a column a worker, the last backward that an update sums on other workers."""
    adders = table[table["kind"].isin(_ADDING)].sort_values("microbatch")
    homes = table["stage"].map(adders.groupby("stage")["worker"].nunique())
    updates = table[(table["kind"] == Op.UPDATE.name) & (homes > 1)]
    if updates.empty:
        return []
    each = updates[["stage", "microbatch"]].sort_values("microbatch")  # the last that it sums
    summed = pd.merge_asof(
        adders.assign(row=adders.index),
        each.assign(last=each["microbatch"]),
        on="microbatch",
        by="stage",
        direction="forward",
    )
    rows = summed.groupby(["stage", "last", "worker"])["row"].max().unstack()
    needed = rows.reindex(pd.MultiIndex.from_frame(updates[["stage", "microbatch"]])).to_numpy()
    own = updates["worker"].to_numpy()[:, None] == rows.columns.to_numpy()
    found = np.full((len(rows.columns), len(table)), len(table))
    found[:, updates.index] = np.nan_to_num(np.where(own, np.nan, needed), nan=len(table)).T
    return list(found)


def _with_messages(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each message between two workers, in the order of its link.

    A link carries one message after another: none is under way before its pass has ended, nor
    before the one in front of it was used at the latest.
    """
    worker = table["worker"].to_numpy()
    start, end = table["start_s"].to_numpy(), np.append(table["end_s"].to_numpy(), 0.0)
    idle_from = end[_in_streams(table)]
    added = [table]
    for payload, made, rows in between_workers(table):
        link = pd.factorize(worker[made] * (worker.max() + 1) + worker[rows])[0]
        order = np.lexsort((end[made], link, table["step"].to_numpy()[made]))
        made, rows, link = made[order], rows[order], link[order]
        message = table.loc[made].assign(
            kind=payload.value, stream=[f"{payload.value} {n}" for n in link], moves=True
        )
        in_front = pd.Series(start[rows]).groupby([message["step"].to_numpy(), link]).shift()
        since = start[rows] - np.fmax(end[made], in_front.to_numpy())
        waited = np.minimum(start[rows] - idle_from[rows], since) > _WAITED * np.maximum(since, 0.0)
        taken = pd.Series(np.where(waited, np.maximum(since, 0.0), np.nan))
        place = [table[name].to_numpy()[made] for name in ("replica", "stage", "microbatch")]
        at_place = taken.groupby([link, *place]).transform("median")
        of_link = taken.groupby(link).transform("median")
        seconds = np.fmin(at_place, of_link).fillna(taken.median()).fillna(0.0)
        message["start_s"] = end[made]
        message["end_s"] = end[made] + seconds.to_numpy()
        added.append(message)
    return pd.concat(added, ignore_index=True)
