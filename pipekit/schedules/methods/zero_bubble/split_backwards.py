"""A backward in two parts, the one for the weights later: what zero-bubble methods share."""

from collections import deque
from collections.abc import Iterable, Iterator

from pipekit.schedules.flushed import Pass
from pipekit.schedules.ops import Op


def split_backwards(passes: Iterable[Pass], waiting: int) -> Iterator[Pass]:
    """Yield a worker's passes with every backward in its two parts.

    Args:
        passes: of a batch, with whole backwards.
        waiting: how many parts for the weights wait; each further part for the input is followed by
            the part for the weights that has waited longest.  The rest comes at the end.
    """
    left: deque[Pass] = deque()
    for op, stage, k in passes:
        if op is not Op.BACKWARD:
            yield op, stage, k
            continue
        yield Op.BACKWARD_INPUT, stage, k
        left.append((Op.BACKWARD_WEIGHT, stage, k))
        if len(left) > waiting:
            yield left.popleft()
    yield from left
