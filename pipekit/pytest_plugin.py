"""The pytest fixture ``pipekit_parity``, which pytest finds where pipekit is installed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pipekit.parity.verdict import Verdict


@pytest.fixture
def pipekit_parity() -> "Callable[..., Verdict]":
    """Return a function that judges a trainer, as :func:`pipekit.parity.judge.parity` does."""

    def judge(adapter: Any, processes: int = 1, **how: Any) -> "Verdict":
        from pipekit.parity.judge import parity  # here, since pytest starts without torch

        return parity(adapter, processes=processes, **how)

    return judge
