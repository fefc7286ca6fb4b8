"""Runs a function in several processes that torchrun might have started: links over gloo."""

from collections.abc import Callable
from typing import Any

from pipekit.parity.launch import Ranks

LIMIT_S = 300


def over_gloo(function: Callable[[], Any], workers: int) -> list[Any]:
    """Return what ``function`` returned in each process, or raise what the first to fail raised."""
    with Ranks(workers) as processes:
        try:
            return processes.call(lambda _: function(), timeout=LIMIT_S)
        except ValueError as failed:
            raise failed.__cause__ or failed from None
