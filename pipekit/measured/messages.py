"""Which pass sends to which, found by step, replica, stage and microbatch."""

from collections.abc import Collection, Iterator

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pipekit.schedules import OPS, Payload

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

RULES = {op.name: op for op in OPS}
SENDING = {p: [name for name, rule in RULES.items() if rule.sends is p] for p in Payload}
RECEIVING = {p: [name for name, rule in RULES.items() if rule.receives is p] for p in Payload}


def packed(*columns: ArrayLike) -> Numbers:
    """Return a number for each row, equal where all columns are, and in their order."""
    key = np.zeros(1, np.int64)
    for each in columns:
        column = np.asarray(each, np.int64)
        least = column.min(initial=0)
        key = key * (column.max(initial=0) - least + 1) + (column - least)
    return key


class Places:
    """Finds the rows of a table with columns step, replica, stage, microbatch and kind."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.kind, self.names = pd.factorize(table["kind"])
        self._stage = table["stage"].to_numpy(np.int64)
        self._stages = int(self._stage.max(initial=0)) + 1
        self._code = packed(*(table[name] for name in ("step", "replica", "microbatch")))

    def among(self, kinds: Collection[str]) -> Mask:
        """Return which rows are of some kinds."""
        found: Mask = np.isin(self.names, list(kinds))[self.kind]
        return found

    def of(self, kinds: Collection[str], here: Mask, step: int = 0) -> Numbers:
        """Return for the rows ``here`` those of some kinds, so many stages on; else their count."""
        none = len(self.kind)
        found = np.full(np.count_nonzero(here), none)
        rows = np.flatnonzero(self.among(kinds) & (self._stage >= 0))
        if len(rows):
            keys = self._code[rows] * self._stages + self._stage[rows]
            order = np.argsort(keys, kind="stable")
            stage = self._stage[here] + step
            wanted = self._code[here] * self._stages + stage
            at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(rows) - 1)]
            is_there = (keys[at] == wanted) & (stage >= 0) & (stage < self._stages)
            found = np.where(is_there, rows[at], none)
        return found


def between_workers(passes: pd.DataFrame) -> Iterator[tuple[Payload, Numbers, Numbers]]:
    """Yield for each payload which rows send a message to which, on another worker.

    Args:
        passes: rows from 0, with columns step, replica, stage, microbatch, worker and kind.
    """
    place, worker = Places(passes), passes["worker"].to_numpy()
    for payload in Payload:
        receives = place.among(RECEIVING[payload])
        made, used = place.of(SENDING[payload], receives, -payload.step), np.flatnonzero(receives)
        there = made < len(passes)
        made, used = made[there], used[there]
        apart = worker[made] != worker[used]
        yield payload, made[apart], used[apart]
