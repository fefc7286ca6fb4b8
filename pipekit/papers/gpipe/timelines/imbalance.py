"""What GPipe loses to stages of unequal times (section 3.3): simulated, and by a formula."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import pandas as pd
import plotly.graph_objects as go
from torch import nn

from pipekit import plots
from pipekit.clusters import TPU_V2_CORE
from pipekit.models import amoebanet_d, resnet101
from pipekit.papers.costs import estimated, images
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.timelines.partition import stage_costs
from pipekit.planning import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe
from pipekit.simulation import simulate

NETWORKS: Mapping[str, Callable[..., nn.Sequential]] = {
    "ResNet-101": resnet101,
    "AmoebaNet-D (4, 512)": partial(amoebanet_d, 12, 512),
}
"""Of section 4.2."""

RECOMPUTED: tuple[Recompute, ...] = "never", "always"


def gpipe_seconds(
    forward_s: Sequence[float], backward_s: Sequence[float], microbatches: int, recompute: bool
) -> float:
    """Return how long a minibatch takes on stages of unequal times, without links.

    All forwards end before the first backward begins, so that each phase has a slowest stage of its
    own: the first microbatch passes all stages, each of the others takes as long as the slowest.
    The first microbatch's recomputation is done while its gradient is on the way, but for the last
    stage's.  Times are of each stage for a microbatch, backwards without recomputation.
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
    :func:`gpipe_seconds`.  The partition has the least variance of forward plus backward seconds.
    """
    again = recompute == "always"
    layers = profile.layers
    costs = [(1 + again) * layer.forward_s + layer.backward_s for layer in layers]
    split = balance(costs, stages, by="variance")
    times = stage_costs(costs, split)
    forward = stage_costs([layer.forward_s for layer in layers], split)
    backward = stage_costs([layer.backward_s for layer in layers], split)
    mean_f, mean_b = sum(forward) / stages, sum(backward) / stages

    schedule = gpipe(stages, microbatches).take(1)
    plan = Plan.by_hand(split, rows=profile.rows, recompute=recompute)
    equal = Plan.by_hand([1] * stages, recompute=recompute)
    ideal_s = simulate(schedule, Profile.uniform(stages, mean_f, mean_b), equal).makespan_s
    ideal = gpipe_seconds([mean_f] * stages, [mean_b] * stages, microbatches, again)
    return {
        "stages": stages,
        "microbatches": microbatches,
        "recompute": recompute,
        "layers of each stage": " ".join(map(str, split)),
        "max / mean stage time": max(times) / (sum(times) / stages),
        "max / mean forward": max(forward) / mean_f,
        "max / mean backward": max(backward) / mean_b,
        "loss (simulated)": 1 - ideal_s / simulate(schedule, profile, plan).makespan_s,
        "loss (formula)": 1 - ideal / gpipe_seconds(forward, backward, microbatches, again),
    }


def imbalances(rows: int) -> pd.DataFrame:
    """Return :func:`imbalance` of both networks, with and without recomputation.

    They are estimated for a core of a TPU-v2, with microbatches of ``rows`` images, and cut into
    2, 4 and 8 stages.
    """
    found = []
    for name, build in NETWORKS.items():
        profile = estimated(build, images(rows, 224), TPU_V2_CORE, dtype="bfloat16")
        for k, recompute in product([2, 4, 8], RECOMPUTED):
            found.append({"network": name} | imbalance(profile, k, 4 * k, recompute))
    table = pd.DataFrame(found)
    error = (table["loss (formula)"] / table["loss (simulated)"] - 1).abs()
    return table.assign(**{"error of the formula": error})


def figure(table: pd.DataFrame) -> go.Figure:
    """Draw the time lost to imbalance over the partitions; a row of :func:`imbalances` a point."""
    x, y = "partitions, K; 4 K microbatches", "time lost to imbalance (%)"
    case = table["network"] + ", recompute " + table["recompute"]
    shown = table.assign(**{x: table["stages"], y: 100 * table["loss (simulated)"]}, case=case)
    eight = shown[(shown["stages"] == 8) & (shown["recompute"] == "always")]
    lost = (f"{name} loses {loss:.0f} %" for name, loss in eight[["network", y]].to_numpy())
    title = "Imbalance grows with the partitions: at 8, " + ", ".join(lost)
    return plots.points(shown, x, y, "case", title=title, label="simulated")


def finding(table: pd.DataFrame, picture: str) -> Finding:
    """Return what section 3.3 claims of imbalance, of the rows of :func:`imbalances`."""
    note = (
        f"worst of {len(table)} cases: K = 2, 4, 8, with and without recomputation. The formula "
        "takes the slowest forward and the slowest backward, since a flush parts them"
    )
    worst = [table["max / mean stage time"].min(), table["error of the formula"].max()]
    return Finding.simulated("gpipe-imbalance-from-partition", worst, note, picture)
