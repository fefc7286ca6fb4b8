"""Python's search for unreachable circles, which takes as long as all that is made meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_collected() -> Iterator[None]:
    """Make a million objects that are in no circle without Python looking at them again and again.

    It makes the tables of long runs twice as fast.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
