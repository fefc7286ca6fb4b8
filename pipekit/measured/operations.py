"""A recorded run as operations: which had to end before which could begin, and what each takes.

The rules are those of the replay in "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI 2025), section 3: a worker runs its operations in the recorded order, one stream
beside the other; an operation begins when those before it in its stream and those whose data it
needs have ended; partners of a communication end together, the transfer after the last has begun.
"""

from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.measured import messages
from pipekit.measured.messages import RULES, Mask, Numbers, Places, among, packed, small
from pipekit.measured.waits import with_messages
from pipekit.schedules import Op, Payload
from pipekit.traces import RECOMPUTE, Trace

Times = NDArray[np.float64]

_PASSES = [RECOMPUTE, *messages.PASSES]
_ADDING = [name for name, rule in RULES.items() if rule.adds_gradient]
_SENT = {p: [p.value, f"send {p.value}"] for p in Payload}
_RECEIVED = {p: [p.value, f"recv {p.value}"] for p in Payload}
_WHOLE = [p.value for p in Payload]  # messages that were not recorded
MESSAGES = list(dict.fromkeys(name for p in Payload for name in _SENT[p] + _RECEIVED[p]))

Blocks = list[tuple[int, int, int]]
"""Operations of which none waits for another: from which row to which so many end together."""


@dataclass(frozen=True)
class Operations:
    """All operations of a recorded run, each behind those that it waits for, as arrays.

    ``kind`` is the number in ``kinds`` of an op of a schedule, the payload of a message, or the
    format's own name; start_s and end_s are from the beginning of the step.  ``seconds`` are what
    each takes by itself: a pass without waiting for its input; of a communication the transfer,
    once all of its group have begun.
    """

    step: Numbers
    worker: Numbers
    replica: Numbers
    stage: Numbers
    kind: Numbers
    microbatch: Numbers
    start_s: Times
    end_s: Times
    kinds: list[str]
    before: Numbers  # [k, operations], rows that must have ended; their number stands for none
    blocks: Blocks  # in the order in which to replay them
    seconds: Times
    moves: Mask  # whether it is a communication
    passes: Mask  # a forward, also one that is run again, or a backward
    messages: Mask  # a message between two passes, or an end of one

    def among(self, *kinds: str) -> Mask:
        chosen = [kind in kinds for kind in self.kinds]
        found: Mask = np.array([*chosen, False])[self.kind]  # False is of rows without one
        return found

    @cached_property
    def pass_rows(self) -> pd.DataFrame:
        """The passes as a table."""
        names = ("step", "worker", "replica", "stage", "kind", "microbatch")
        times = ("start_s", "end_s", "seconds")
        columns = {name: getattr(self, name)[self.passes] for name in names + times}
        return pd.DataFrame(columns, copy=False)

    @cached_property
    def delays(self) -> Times:
        """Seconds by which each operation began after all that it waits for, as recorded."""
        ready = _latest(np.append(self.end_s, 0.0), self.before)
        late: Times = np.maximum(self.start_s - ready, 0.0)
        return late

    def ends_s(self, cases: Times, delays: Times | None = None) -> Times:
        """Return [operations, cases], when each ends.

        ``cases`` [operations, cases] are the seconds that each takes after all that it waits for,
        and ``delays`` [operations] those before it begins then.
        """
        ends = np.empty((len(self.step) + 1, cases.shape[1]), cases.dtype)
        ends[-1] = 0.0
        for begin, stop, size in self.blocks:
            ready = _latest(ends, self.before[:, begin:stop])
            if delays is not None:
                ready += delays[begin:stop, None]
            if size > 1:
                each = ready.reshape(-1, size, cases.shape[1]).swapaxes(0, 1)
                each[:] = reduce(np.maximum, each)  # over few at once, max(axis=0) is slow
            np.add(ready, cases[begin:stop], out=ends[begin:stop])
        return ends[:-1]

    def last_ends_s(self, cases: Times, delays: Times | None = None) -> Times:
        """Return [steps, cases], when each step's last operation ends; see :meth:`ends_s`."""
        rows, first = self._last
        return np.maximum.reduceat(self.ends_s(cases, delays)[rows], first, axis=0)

    @cached_property
    def _last(self) -> tuple[Numbers, Numbers]:
        """The operations that none waits for, step by step, and where in them each begins."""
        is_last = np.ones(len(self.step) + 1, np.bool_)
        is_last[self.before] = False
        rows = np.flatnonzero(is_last[:-1])
        rows = rows[np.argsort(self.step[rows], kind="stable")]
        return rows, np.flatnonzero(np.diff(self.step[rows], prepend=self.step.min() - 1))


def _latest(ends: Times, before: Numbers) -> Times:
    found: Times = ends.take(before[0], axis=0)
    for rows in before[1:]:
        np.maximum(found, ends.take(rows, axis=0), out=found)
    return found


def operations(trace: Trace) -> Operations:
    """Return the operations of a trace, with messages between workers that were not recorded.

    Such a one takes the median of what those at its place and on its link take where the receiver
    waited for them.  Raises ValueError if operations wait for one another in a circle.
    """
    table = _table(trace)
    if not among(table["kind"], MESSAGES).any():
        table = with_messages(table)
    kind, kinds = pd.factorize(table["kind"])
    table["kind"] = pd.Categorical.from_codes(kind, list(kinds))
    place, moves = Places(table), table["moves"].to_numpy(bool)
    start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
    in_front, data = messages.before_in_stream(table), _data(place, len(table))
    before = np.stack([in_front, data, *_sums(table)])
    group = table["group"].to_numpy()
    alone = (group < 0) | (np.bincount(group + 1)[group + 1] == 1)
    group = np.where(alone, np.arange(len(group)), len(group) + pd.factorize(group)[0])
    latest = np.full(group.max() + 1, -np.inf)
    np.maximum.at(latest, group, start)
    # A span that begins before its input was sent contains the wait for it.
    sent = np.append(np.where(place.among(_WHOLE), start, end), 0.0)
    there = np.where(moves, latest[group], _latest(sent, before[1:]))
    seconds = np.maximum(end - np.maximum(start, there), 0.0)
    order, blocks = _blocks(trace.name, before, group)
    at = np.full(len(table) + 1, len(table))
    at[order] = np.arange(len(table))
    names = ("step", "worker", "replica", "stage", "microbatch", "start_s", "end_s")
    return Operations(
        **{name: table[name].to_numpy().take(order) for name in names},
        kind=kind.take(order),
        kinds=list(kinds),
        before=at.take(before.take(order, axis=1)),
        blocks=blocks,
        seconds=seconds[order],
        moves=moves[order],
        passes=place.among(_PASSES)[order],
        messages=place.among(MESSAGES)[order],
    )


def _table(trace: Trace) -> pd.DataFrame:
    tasks = trace.frame[trace.frame["op"].isin([*RULES, RECOMPUTE])].rename(columns={"op": "kind"})
    table = pd.concat([tasks.assign(moves=False, group=-1), trace.other], ignore_index=True)
    for name in {"step", "replica"} - set(table):
        table[name] = 0
    kind = table["kind"].astype("category")
    streams = np.array([MESSAGES.index(n) + 1 if n in MESSAGES else 0 for n in kind.cat.categories])
    stream = np.where(table["moves"], streams[kind.cat.codes], 0)
    steps = trace.steps
    step = table["step"] if steps is None else np.searchsorted(steps["step"], table["step"])
    lane = packed(step, table["worker"], stream)
    order = np.lexsort((table["end_s"], table["start_s"], small(lane)))
    begins = 0.0 if steps is None else steps["start_s"].to_numpy()[step]
    times = {name: table[name] - begins for name in ("start_s", "end_s")}
    return table.assign(lane=lane, kind=kind, **times).take(order).reset_index(drop=True)


def _data(place: Places, none: int) -> Numbers:
    """Return of a pass its message, or the pass that made its input; of a message its pass."""
    found = np.full(none, none)
    for payload in Payload:
        here = place.among(messages.RECEIVING[payload])
        message = place.of(_RECEIVED[payload], here, -payload.step)
        inside = place.of(messages.SENDING[payload], here, -payload.step)
        found[here] = np.where(message < none, message, inside)
        here = place.among(_SENT[payload])
        found[here] = place.of(messages.SENDING[payload], here)
    return found


def _sums(table: pd.DataFrame) -> list[Numbers]:
    """Return, a column a worker, the last backward that an update sums on other workers."""
    places = ["worker", "stage", "microbatch"]
    updates = table.loc[table["kind"] == Op.UPDATE.name, places].sort_values("microbatch")
    if updates.empty:
        return []
    adders = table.loc[table["kind"].isin(_ADDING), places].sort_values("microbatch")
    adders["last"] = adders.index
    adders["last"] = adders.groupby(["worker", "stage"])["last"].cummax()
    found = []
    for worker, own in adders.groupby("worker"):
        others = updates[updates["worker"] != worker].reset_index(names="update")
        summed = pd.merge_asof(others, own, on="microbatch", by="stage").dropna()
        if len(summed):
            column = np.full(len(table), len(table))
            column[summed["update"]] = summed["last"]
            found.append(column)
    return found


def _blocks(name: str, before: Numbers, group: Numbers) -> tuple[Numbers, Blocks]:
    """Return the rows behind those that they wait for, groups together, and the blocks."""
    none, in_front = before.shape[1], np.append(before[0], before.shape[1])
    waits, size = np.append(np.ones(none, np.bool_), False), np.bincount(group)
    order: list[Numbers] = []
    blocks: Blocks = []
    begin, there = 0, np.zeros(len(size), np.int64)
    heads = np.flatnonzero(in_front[:-1] == none)  # the next of each stream
    while len(heads):
        late = waits[before[1][heads]]
        for rows in before[2:]:
            late |= waits[rows[heads]]
        here = group[heads[~late]]
        np.add.at(there, here, 1)
        late |= there[group[heads]] < size[group[heads]]
        there[here] = 0
        ready = heads[~late]
        if not len(ready):
            raise ValueError(
                f"operations of {name} wait for one another in a circle: ranks are missing, steps "
                f"are cut, or its stages, microbatches or clocks are not those of the run"
            )
        waits[ready] = False
        behind = ready + 1
        behind = behind[in_front[behind] == ready]
        heads = np.concatenate([heads[late], behind])
        ready.sort()
        sizes = size[group[ready]]
        order.append(ready[np.lexsort((group[ready], sizes))])
        for each, count in zip(*np.unique(sizes, return_counts=True), strict=True):
            blocks.append((begin, begin := begin + int(count), int(each)))
    return np.concatenate(order), blocks
