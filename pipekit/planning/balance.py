"""Stages of about equal cost, as GPipe and torchgpipe look for them."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from pipekit.partition.balance import balance_by_cost, best_split, require_stages, stage_sums

By = Literal["variance", "block", "max"]


def balance(costs: Sequence[float], stages: int, by: By = "max") -> list[int]:
    """Return how many layers each stage gets; every stage gets at least one.

    Args:
        costs: of each layer, 0 or more.
        stages: at least 1, at most as many as there are layers.
        by: "variance": the variance of the stages' costs is the least that there is (what GPipe's
            partitioner aims at, section 3.2; there a heuristic, here exact).
            "block": costs of two stages differ by no more than the costliest layer's (torchgpipe,
            section 3, by the block partitions of Bárány and Grinberg).  Not the best in any other
            sense.
            "max": the costliest stage is as cheap as can be.

    Raises:
        ValueError: there are more stages than layers, or a cost is negative or not finite.
    """
    if not all(0 <= cost < np.inf for cost in costs):
        raise ValueError("costs of layers are 0 or positive numbers")
    require_stages(stages, len(costs))
    if by == "max":
        return balance_by_cost(costs, stages)
    if by == "variance":
        # The mean is the same for every split, so that the sum of squares decides.
        deviation = stage_sums(costs) - sum(costs) / stages
        return best_split(deviation**2, stages, np.add)
    if by == "block":
        return _block_partition(costs, stages)
    raise ValueError(f"by must be 'variance', 'block' or 'max', not {by!r}")


def _block_partition(costs: Sequence[float], stages: int) -> list[int]:
    """Return the block partition by the algorithm of Bárány and Grinberg.

    ("Block partitions of sequences", Israel Journal of Mathematics, 2015.)  As long as the
    costliest block exceeds the cheapest by more than the costliest item: the cheapest block that is
    nearest to the costliest gets an item of its neighbour on that side.  So items move away from
    the costliest block, which in the end loses one itself.  Fractions make the bound hold exactly;
    with rounded sums the loop might not end.
    """
    exact = [Fraction(cost) for cost in costs]
    largest = max(exact)
    ends = [len(exact) * block // stages for block in range(stages + 1)]
    while True:
        sums = _sums(exact, ends)
        costliest = sums.index(max(sums))
        while True:
            cheapest = min(range(stages), key=lambda block: (sums[block], abs(block - costliest)))
            if sums[costliest] - sums[cheapest] <= largest:
                return _without_empty(ends)
            giver = cheapest + (1 if cheapest < costliest else -1)
            if giver > cheapest:
                moved = exact[ends[giver]]
                ends[giver] += 1
            else:
                ends[cheapest] -= 1
                moved = exact[ends[cheapest]]
            sums[giver] -= moved
            sums[cheapest] += moved
            if giver == costliest:
                break


def _sums(items: Sequence[Fraction], ends: Sequence[int]) -> list[Fraction]:
    before = [Fraction(0), *accumulate(items)]
    return [before[b] - before[a] for a, b in pairwise(ends)]


def _without_empty(ends: Sequence[int]) -> list[int]:
    """Return the blocks' lengths, longer blocks being cut in place of empty ones.

    Beside an empty block none exceeds the costliest item, and their parts do not either: the bound
    on differences still holds.
    """
    lengths = [b - a for a, b in pairwise(ends)]
    full = [length for length in lengths if length]
    for _ in range(len(lengths) - len(full)):
        longest = full.index(max(full))
        full[longest : longest + 1] = [full[longest] - 1, 1]
    return full
