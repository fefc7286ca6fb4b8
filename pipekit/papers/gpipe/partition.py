"""GPipe's partitioner: costs of layers, stages of least variance, imbalance (3.1 to 3.3)."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise, product
from types import MappingProxyType

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from pipekit import plots
from pipekit.clusters import TPU_V2_CORE
from pipekit.models import amoebanet_d, resnet101
from pipekit.papers.costs import estimated, images
from pipekit.papers.findings import Finding
from pipekit.planning.balance import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.work import CountWork
from pipekit.schedules import gpipe
from pipekit.simulation import simulate

COST: Mapping[str, Callable[[LayerProfile], float]] = MappingProxyType(
    {
        "operations": lambda layer: layer.flops,
        "time": lambda layer: layer.forward_s + layer.backward_s,
    }
)
"""What a partition can be balanced by; the paper's is a static estimate (sections 3.1 and 3.2)."""


def least_variance(profile: Profile, stages: int, by: str = "operations") -> list[int]:
    """Return the layers of each stage by GPipe's rule: the least variance of the stages' costs.

    Args:
        profile: of the network.
        stages: K.
        by: a key of :data:`COST`.
    """
    return balance([COST[by](layer) for layer in profile.layers], stages, by="variance")


def estimated_flops(layer: nn.Module, x: Tensor) -> int:
    """Return the FLOPs of a layer's forward, from the shape of its input alone (c_i in 3.1).

    Nothing is computed: layer and input are on device "meta".
    """
    with CountWork() as count:
        layer(x)
    return count.work.flops


def flops_by_hand(layer: nn.Linear | nn.Conv2d, x: Tensor, y: Tensor) -> int:
    """Return a multiplication and an addition for each weight that each output value needs.

    Args:
        layer: fully connected, or a convolution.
        x: its input, [B, features] or [B, channels, H, W].
        y: its output, likewise.
    """
    if isinstance(layer, nn.Linear):
        return 2 * y.numel() * layer.in_features
    height, width = layer.kernel_size
    return 2 * y.numel() * height * width * layer.in_channels // layer.groups


def cost_errors(rows: Sequence[int]) -> list[int]:
    """Return estimated FLOPs minus those by hand, for fully connected layers and convolutions.

    Args:
        rows: sizes of the microbatches to try each layer with.
    """
    errors = []
    with torch.device("meta"):
        layers: list[tuple[nn.Linear | nn.Conv2d, tuple[int, ...]]] = [
            (nn.Linear(784, 128), (784,)),
            (nn.Linear(7, 3, bias=False), (7,)),
            (nn.Conv2d(3, 64, 7, stride=2, padding=3), (3, 224, 224)),
            (nn.Conv2d(16, 32, (1, 7), padding=(0, 3), bias=False), (16, 28, 28)),
            (nn.Conv2d(32, 32, 3, padding=1, groups=8), (32, 14, 14)),
        ]
        for layer, shape in layers:
            for count in rows:
                x = torch.empty(count, *shape)
                errors.append(estimated_flops(layer, x) - flops_by_hand(layer, x, layer(x)))
    return errors


def splits(layers: int, stages: int) -> Iterator[list[int]]:
    """Yield every way to cut layers into contiguous stages, as layers of each stage."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield [b - a for a, b in pairwise([0, *cuts, layers])]


def stage_costs(costs: Sequence[float], split: Sequence[int]) -> list[float]:
    """Return the summed costs of each stage."""
    return [float(part.sum()) for part in np.split(np.asarray(costs), np.cumsum(split)[:-1])]


def excess_variance(pipelines: int, seed: int) -> float:
    """Return how far the partitioner is from the least variance of stage costs, at most.

    It is held against all splits of random pipelines with up to 14 layers and 4 stages.

    Args:
        pipelines: how many random ones.
        seed: of their costs, whole numbers so that variances are compared without rounding.

    Returns:
        The largest difference, in cost^2; 0 if it always finds the minimum.
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


def gpipe_seconds(
    forward_s: Sequence[float], backward_s: Sequence[float], microbatches: int, recompute: bool
) -> float:
    """Return how long a minibatch takes on stages of unequal times, without links.

    All forwards end before the first backward begins, so that each phase has a slowest stage of its
    own: the first microbatch passes all stages, each of the others takes as long as the slowest.
    The first microbatch's recomputation is done while its gradient is on the way, but for the last
    stage's.

    Args:
        forward_s: of each stage, a microbatch.
        backward_s: of each stage, a microbatch, without recomputation.
        microbatches: of the minibatch.
        recompute: whether forwards run again before their backwards.
    """
    again = [f * recompute for f in forward_s]
    slowest = max(f + b for f, b in zip(again, backward_s, strict=True))
    forwards = sum(forward_s) + (microbatches - 1) * max(forward_s)
    return forwards + again[-1] + sum(backward_s) + (microbatches - 1) * slowest


def imbalance(
    profile: Profile, stages: int, microbatches: int, recompute: Recompute
) -> dict[str, object]:
    """Return what GPipe's own partition of a network loses to imbalance, a row of a table.

    The loss is the part of a minibatch's time that equal stages would save: simulated, and by
    :func:`gpipe_seconds`.

    Args:
        profile: of the network.
        stages: to cut it into, with the least variance of forward plus backward seconds.
        microbatches: of a minibatch.
        recompute: "never" or "always".
    """
    again = recompute == "always"
    layers = profile.layers
    costs = [(1 + again) * layer.forward_s + layer.backward_s for layer in layers]
    split = balance(costs, stages, by="variance")
    times = stage_costs(costs, split)
    forward = stage_costs([layer.forward_s for layer in layers], split)
    backward = stage_costs([layer.backward_s for layer in layers], split)
    mean_f, mean_b = sum(forward) / stages, sum(backward) / stages

    schedule = gpipe(stages, microbatches)
    plan = Plan.by_hand(split, rows=profile.rows, recompute=recompute)
    equal = Plan.by_hand([1] * stages, recompute=recompute)
    simulated = 1 - (
        simulate(schedule, Profile.uniform(stages, mean_f, mean_b), equal).makespan_s
        / simulate(schedule, profile, plan).makespan_s
    )
    predicted = 1 - (
        gpipe_seconds([mean_f] * stages, [mean_b] * stages, microbatches, again)
        / gpipe_seconds(forward, backward, microbatches, again)
    )
    return {
        "stages": stages,
        "microbatches": microbatches,
        "recompute": recompute,
        "layers of each stage": " ".join(map(str, split)),
        "max / mean stage time": max(times) / (sum(times) / stages),
        "max / mean forward": max(forward) / mean_f,
        "max / mean backward": max(backward) / mean_b,
        "loss (simulated)": simulated,
        "loss (formula)": predicted,
    }


def imbalances(rows: int) -> pd.DataFrame:
    """Return :func:`imbalance` of both networks of section 4.2, with and without recomputation.

    They are estimated for a core of a TPU-v2 and cut into 2, 4 and 8 stages.

    Args:
        rows: images of a microbatch.
    """
    networks: dict[str, Callable[..., nn.Sequential]] = {
        "ResNet-101": resnet101,
        "AmoebaNet-D (4, 512)": partial(amoebanet_d, 12, 512),
    }
    ways: tuple[Recompute, ...] = "never", "always"
    found = []
    for name, build in networks.items():
        profile = estimated(build, images(rows, 224), TPU_V2_CORE, dtype="bfloat16")
        for k, recompute in product([2, 4, 8], ways):
            found.append({"network": name} | imbalance(profile, k, 4 * k, recompute))
    table = pd.DataFrame(found)
    error = (table["loss (formula)"] / table["loss (simulated)"] - 1).abs()
    return table.assign(**{"error of the formula": error})


def imbalance_figure(table: pd.DataFrame) -> go.Figure:
    """Draw the time lost to imbalance over the partitions; a row of :func:`imbalances` a point."""
    shown = table.assign(
        loss=100 * table["loss (simulated)"],
        case=table["network"] + ", recompute " + table["recompute"],
    )
    eight = shown[(shown["stages"] == 8) & (shown["recompute"] == "always")]
    lost = (f"{name} loses {loss:.0f} %" for name, loss in eight[["network", "loss"]].to_numpy())
    return plots.points(
        shown,
        x="stages",
        y="loss",
        color="case",
        title="Imbalance grows with the partitions: at 8, " + ", ".join(lost),
        label="simulated",
        x_title="partitions, K; 4 K microbatches",
        y_title="time lost to imbalance (%)",
    )


def findings(pipelines: int, seed: int) -> list[Finding]:
    """Return what section 3.1 claims of the costs' estimate, and 3.3 of the partitioner.

    Args:
        pipelines: random ones whose partition is held against all that there are.
        seed: of their costs.
    """
    errors = cost_errors([1, 4, 32])
    return [
        Finding.exact(
            "gpipe-cost-estimator",
            not any(errors),
            f"{len(errors)} linear and convolutional cases against counts by hand",
        ),
        Finding.exact(
            "gpipe-partition-min-variance",
            excess_variance(pipelines, seed) == 0,
            f"equal to the best of all splits for {pipelines} random lists of up to 14 layers, up "
            "to 4 stages",
        ),
    ]
