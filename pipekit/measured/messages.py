"""Which pass sends to which."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pipekit.schedules import OPS, Payload

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

RULES = {op.name: op for op in OPS}
PASSES = [name for name, rule in RULES.items() if rule.is_pass]
SENDING = {p: [name for name, rule in RULES.items() if rule.sends is p] for p in Payload}
RECEIVING = {p: [name for name, rule in RULES.items() if rule.receives is p] for p in Payload}
WHOLE_BACKWARDS = [
    name for name, rule in RULES.items() if rule.sends is Payload.GRADIENT and rule.adds_gradient
]


def packed(*columns: ArrayLike) -> Numbers:
    """Return a number for each row, equal where all columns are, and in their order."""
    key = np.zeros(1, np.int64)
    for each in columns:
        column = np.asarray(each, np.int64)
        least = column.min(initial=0)
        key = key * (column.max(initial=0) - least + 1) + (column - least)
    return key


def small(numbers: Numbers) -> NDArray[Any]:
    """Return numbers of at least 0 in as few bytes as hold them: numpy sorts 16 bits by radix."""
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))


def among(kind: pd.Series, names: Collection[str]) -> Mask:
    """Return which of some categories are one of these names."""
    codes, found = kind.cat.codes.to_numpy(), np.zeros(len(kind), np.bool_)
    for number, name in enumerate(kind.cat.categories):
        if name in names:
            found |= codes == number
    return found


class Places:
    """Finds the rows of a table with columns step, replica, stage, microbatch and kind."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._kind = table["kind"]
        self._stage = table["stage"].to_numpy(np.int64)
        self._stages = int(self._stage.max(initial=0)) + 1
        code = packed(*(table[name] for name in ("step", "replica", "microbatch")))
        self._code = pd.factorize(code)[0] * self._stages
        self._size = int(self._code.max(initial=0)) + self._stages

    def among(self, kinds: Collection[str]) -> Mask:
        return among(self._kind, kinds)

    def of(self, kinds: Collection[str], here: Mask, step: int = 0) -> Numbers:
        """Return for the rows ``here`` those of some kinds, so many stages on; else their count."""
        none, stage = len(self._kind), self._stage[here] + step
        rows = np.flatnonzero(self.among(kinds) & (self._stage >= 0))[::-1]  # the first counts
        place = np.full(self._size, none)
        place[self._code[rows] + self._stage[rows]] = rows
        inside = (stage >= 0) & (stage < self._stages)
        return np.where(inside, place[self._code[here] + np.where(inside, stage, 0)], none)


def between_workers(passes: pd.DataFrame) -> Iterator[tuple[Payload, Numbers, Numbers]]:
    """Yield for each payload which rows of a table send a message to which, on another worker."""
    place, worker = Places(passes), passes["worker"].to_numpy()
    for payload in Payload:
        receives = place.among(RECEIVING[payload])
        made, used = place.of(SENDING[payload], receives, -payload.step), np.flatnonzero(receives)
        there = made < len(passes)
        made, used = made[there], used[there]
        apart = worker[made] != worker[used]
        yield payload, made[apart], used[apart]


def before_in_stream(table: pd.DataFrame) -> Numbers:
    """Return of each operation the one before it in its stream."""
    begins = np.diff(table["lane"].to_numpy(), prepend=-1) != 0
    return np.where(begins, len(table), np.arange(len(table)) - 1)
