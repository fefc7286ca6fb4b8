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


def beside_head(layers: int, stages: int, head: float) -> list[int]:
    """Return how many layers each stage has: equally many, or, if that leaves a rest, balanced.

    Then the head, which costs ``head`` layers, takes their place on the last stage, and the
    embedding that of one on the first if there is a choice: Megatron-LM's
    ``--pipeline-model-parallel-layout`` as its users write it.

    Raises:
        ValueError: there are fewer layers than stages between the ends.
    """
    if layers < stages - 2:
        raise ValueError(f"{layers} layers are too few for {stages} stages")
    if layers % stages == 0:
        return [layers // stages] * stages
    most = -(-layers // stages)
    while most * (stages - 1) + _layers_beside(head, most) < layers:
        most += 1
    last = _layers_beside(head, most)
    each, more = divmod(layers - last, stages - 1)
    return [each + (stage >= stages - 1 - more) for stage in range(stages - 1)] + [last]


def _layers_beside(head: float, most: int) -> int:
    """Return how many layers a stage of ``most`` layers' cost has beside the head."""
    return max(math.floor(most - head), 0)
