"""Searches that are given some seconds end after so many looks at the clock, on every machine."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest

from pipekit.searching import rounds

LOOK_S = 1e-3
"""By which the clock moves: some moves of the local search take as long."""


@pytest.fixture(autouse=True)
def _counted_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[int] = count()
    clock = SimpleNamespace(thread_time=lambda: next(looks) * LOOK_S)
    monkeypatch.setattr(rounds, "time", clock)
