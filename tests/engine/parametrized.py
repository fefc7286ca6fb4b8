"""Over which transports tests run."""

from collections.abc import Iterable
from typing import Any

import pytest

TRANSPORTS = pytest.mark.parametrize("transport", ["threads", "distributed"])


def first_over_processes(name: str, cases: Iterable[Any]) -> pytest.MarkDecorator:
    """All cases over threads, and the first over processes too, which start slowly."""
    every = [*cases]
    pairs = [*((case, "threads") for case in every), (every[0], "distributed")]
    return pytest.mark.parametrize((name, "transport"), pairs)
