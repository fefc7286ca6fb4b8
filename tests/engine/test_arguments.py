"""What the user passes in; Pipeline's own refusals are in test_failures."""

from collections.abc import Iterator
from typing import Any

import pytest

from pipekit.engine import arguments


def test_batches_with_a_length_are_left_unread() -> None:
    class Loud:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("read")

    loud = Loud()
    assert arguments.counted(loud) == (loud, 2, 2)


def test_a_generator_is_read() -> None:
    assert arguments.counted(n for n in range(3)) == ([0, 1, 2], 3, 3)


def test_no_batches() -> None:
    nothing: list[Any] = []
    for empty in (nothing, iter(nothing)):
        with pytest.raises(ValueError, match="no batches"):
            arguments.counted(empty)
