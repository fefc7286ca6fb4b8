"""GPipe's partitioner: costs of layers, stages of least variance (sections 3.1 and 3.2)."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from pipekit.papers.findings import Finding
from pipekit.planning import balance
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.layer_runs.work import CountWork

COST: Mapping[str, Callable[[LayerProfile], float]] = MappingProxyType(
    {
        "operations": lambda layer: layer.flops,
        "time": lambda layer: layer.forward_s + layer.backward_s,
    }
)
"""What a partition can be balanced by; the paper's is a static estimate (sections 3.1 and 3.2)."""


def least_variance(profile: Profile, stages: int, by: str = "operations") -> list[int]:
    """Return the layers of each stage by GPipe's rule: the least variance of the stages' costs.

    ``by`` is a key of :data:`COST`.
    """
    return balance([COST[by](layer) for layer in profile.layers], stages, by="variance")


def cost_errors(rows: Sequence[int]) -> list[int]:
    """Return estimated FLOPs minus those by hand, for fully connected layers and convolutions.

    By hand there is a multiplication and an addition for each weight that an output value needs.
    The estimate, c_i in section 3.1, sees shapes alone: nothing is computed.  Each layer is tried
    with microbatches of so many ``rows``.
    """
    errors = []
    with torch.device("meta"):
        layers: list[tuple[nn.Module, tuple[int, ...], int]] = [
            (nn.Linear(784, 128), (784,), 784),
            (nn.Linear(7, 3, bias=False), (7,), 7),
            (nn.Conv2d(3, 64, 7, stride=2, padding=3), (3, 224, 224), 7 * 7 * 3),
            (nn.Conv2d(16, 32, (1, 7), padding=(0, 3), bias=False), (16, 28, 28), 1 * 7 * 16),
            (nn.Conv2d(32, 32, 3, padding=1, groups=8), (32, 14, 14), 3 * 3 * 32 // 8),
        ]
        for (layer, shape, weights), count in product(layers, rows):
            with CountWork() as counted:
                y = layer(torch.empty(count, *shape))
            errors.append(counted.work.flops - 2 * y.numel() * weights)
    return errors


def splits(layers: int, stages: int) -> Iterator[list[int]]:
    """Yield every way to cut layers into contiguous stages, as layers of each stage."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield [after - before for before, after in pairwise((0, *cuts, layers))]


def stage_costs(costs: Sequence[float], split: Sequence[int]) -> list[float]:
    """Return the summed costs of each stage."""
    return [float(part.sum()) for part in np.split(np.asarray(costs), np.cumsum(split)[:-1])]


def excess_variance(pipelines: int, seed: int) -> float:
    """Return how far the partitioner is from the least variance of stage costs, at most, in cost^2.

    It is held against all splits of ``pipelines`` random ones with up to 14 layers and 4 stages,
    whose costs are whole numbers, so that variances are compared without rounding.
    """
    draw, worst = random.Random(seed), 0.0
    for _ in range(pipelines):
        layers = draw.randint(1, 14)
        stages = draw.randint(1, min(4, layers))
        costs = [draw.randint(0, 100) for _ in range(layers)]
        least = min(np.var(stage_costs(costs, split)) for split in splits(layers, stages))
        found = np.var(stage_costs(costs, balance(costs, stages, by="variance")))
        worst = max(worst, float(found - least))
    return worst


def findings(pipelines: int, seed: int) -> list[Finding]:
    """Return what section 3.1 claims of the costs' estimate, and 3.3 of the partitioner.

    Arguments are those of :func:`excess_variance`.
    """
    errors = cost_errors([1, 4, 32])
    by_hand = f"{len(errors)} linear and convolutional cases against counts by hand"
    best = f"equal to the best of all splits for {pipelines} random lists of up to 14 layers, up "
    return [
        Finding.exact("gpipe-cost-estimator", not any(errors), by_hand),
        Finding.exact(
            "gpipe-partition-min-variance",
            excess_variance(pipelines, seed) == 0,
            f"{best}to 4 stages",
        ),
    ]
