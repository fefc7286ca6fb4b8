"""Which pass sends to which, found by step, replica, stage and microbatch."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import OPS, Payload

Numbers = NDArray[np.int64]

RULES = {op.name: op for op in OPS}
SENDING = {p: [name for name, rule in RULES.items() if rule.sends is p] for p in Payload}
RECEIVING = {p: [name for name, rule in RULES.items() if rule.receives is p] for p in Payload}


def between_workers(passes: pd.DataFrame) -> Iterator[tuple[Payload, Numbers, Numbers]]:
    """Yield for each payload which rows send a message to which, on another worker.

    Args:
        passes: rows from 0, with columns step, replica, stage, microbatch, worker and kind.
    """
    place, kind = Places(passes), passes["kind"].to_numpy()
    worker = np.append(passes["worker"].to_numpy(), -1)
    for payload in Payload:
        source = place.of(SENDING[payload], np.isin(kind, RECEIVING[payload]), -payload.step)
        rows = np.flatnonzero((source < len(passes)) & (worker[source] != worker[:-1]))
        yield payload, source[rows], rows


class Places:
    """Finds the row of an operation by step, replica, stage and microbatch."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._kind, self._none = table["kind"].to_numpy(), len(table)
        codes = [pd.factorize(table[name])[0] for name in ("step", "replica", "microbatch")]
        self._stage = table["stage"].to_numpy()
        self._stages = int(self._stage.max(initial=0)) + 1
        self._code = np.zeros(len(table), np.int64)
        for code in codes:
            self._code = self._code * (int(code.max(initial=0)) + 1) + code

    def of(self, kinds: Sequence[str], here: NDArray[np.bool_], step: int = 0) -> Numbers:
        """Return for the rows ``here`` those of some kinds, so many stages behind; else none."""
        found = np.full(self._none, self._none)
        rows = np.flatnonzero(np.isin(self._kind, kinds))
        keys = self._code[rows] * self._stages + self._stage[rows]
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
        stage = self._stage[here] + step
        wanted = self._code[here] * self._stages + stage
        if len(rows):
            at = np.minimum(np.searchsorted(keys, wanted), len(rows) - 1)
            is_there = (keys[at] == wanted) & (stage >= 0) & (stage < self._stages)
            found[here] = np.where(is_there, rows[at], self._none)
        return found
