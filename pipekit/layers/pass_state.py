"""What the pipeline is about to do with a layer, for layers that behave accordingly.

Each worker's thread has its own answers.  Outside any pipeline no forward is run twice, and each is
a batch of its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _PassState(threading.local):
    checkpointing = False
    recomputing = False
    ends_batch = True


_now = _PassState()


def is_checkpointing() -> bool:
    """Return whether the present forward keeps only its input, and will be run again."""
    return _now.checkpointing


def is_recomputing() -> bool:
    """Return whether the present forward has been run before (torchgpipe, section 3.2.4)."""
    return _now.recomputing


def ends_batch() -> bool:
    """Return whether the present microbatch is the last one that this worker has of its batch."""
    return _now.ends_batch


def set_ends_batch(ends_batch: bool) -> None:
    """Set it in this thread, until the end of :func:`during`."""
    _now.ends_batch = ends_batch


@contextmanager
def during(*, checkpointing: bool = False, recomputing: bool = False) -> Iterator[None]:
    """Set what is given, in this thread, for a while; what is set meanwhile ends with it."""
    before = dict(vars(_now))
    _now.checkpointing = checkpointing or _now.checkpointing
    _now.recomputing = recomputing or _now.recomputing
    try:
        yield
    finally:
        vars(_now).clear()
        vars(_now).update(before)
