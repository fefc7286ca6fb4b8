"""On which workers the stages can be, so that none has much more to do than others."""

import random
from collections.abc import Callable, Sequence

Placement = tuple[int, ...]
"""The worker of each stage."""
_ROUNDS = 200
"""Changes in a row that make nothing better, after which a placement is left as it is."""


def improved(
    start: Sequence[int], workers: int, cost: Callable[[Placement], float], seed: int
) -> Placement:
    """Return a placement of less cost: stages change places, or move to another worker."""
    chance = random.Random(seed)
    best, least = tuple(start), cost(tuple(start))
    failed = 0
    while failed < _ROUNDS:
        changed = list(best)
        one, other = chance.sample(range(len(changed)), 2)
        if chance.random() < 0.5:
            changed[one], changed[other] = changed[other], changed[one]
        else:
            changed[one] = chance.randrange(workers)
        failed += 1
        if len(set(changed)) < workers or tuple(changed) == best:
            continue
        each = cost(tuple(changed))
        if each < least:
            best, least, failed = tuple(changed), each, 0
    return best
