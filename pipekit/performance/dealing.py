"""How frameworks deal a model's items, in their order, to pipeline stages."""

import math
from collections.abc import Sequence
from itertools import accumulate


def filled(items: int, stages: int) -> list[int]:
    """Return how many of equal items each stage gets: all get the most that one needs, till none
    is left, so that the last stages may have fewer or none.

    DeepSpeed deals so (``runtime/utils.py``, ``partition_balanced``), by the type of a layer.
    """
    most = math.ceil(items / stages)
    return [min(most, max(0, items - stage * most)) for stage in range(stages)]


def by_thresholds(costs: Sequence[float], stages: int) -> list[int]:
    """Return the stage of each item: a stage ends once all costs so far exceed its even share.

    nanotron deals so (``parallel/pipeline_parallel/utils.py``); a large item may leave later stages
    without any, which there ends the run.
    """
    share = sum(costs) / stages
    dealt, stage = [], 0
    for so_far in accumulate(costs):
        dealt.append(stage)
        stage += stage < stages - 1 and so_far > share * (stage + 1)
    return dealt
