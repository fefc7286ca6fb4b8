"""Every way to divide workers into parallel pipelines, which one wins, and why."""

import math
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import pandas as pd

from pipekit import plots
from pipekit.clusters import named
from pipekit.explore.page.controls import choice, steps
from pipekit.explore.page.explorer import explore, preset
from pipekit.explore.page.view import Plot, View
from pipekit.explore.timeline import ESTIMATES, MODELS, OPTIMIZERS, estimated
from pipekit.planning import parallel_pipelines, sweep
from pipekit.planning.sweep import fastest
from pipekit.plans import Plan

CLUSTERS = ("pipedream-a", "pipedream-b", "2bw-v100", "torchgpipe-p40", "figure1-k80")
"""Those of :data:`pipekit.names.CLUSTERS` whose float32 rates are known."""
PRESETS = {
    "gpt-1.3B on 16 V100s": preset(),
    "gpt-2.2B on 64 V100s": preset(model="gpt-2.2B", workers=64, max_batch=512),
    "bert-large on slow links": preset(model="bert-large", cluster="pipedream-b"),
    "vgg16 on PipeDream's cluster A": preset(
        model="vgg16", cluster="pipedream-a", optimizer="SGD, momentum", max_batch=1024
    ),
}
_ONE = ["width", "depth", "microbatch_rows", "recompute"]
_SHOWN = 5  # rows of the table, beside data parallelism and the single pipeline


def see(
    model: Annotated[str, choice("model", MODELS)] = "gpt-1.3B",
    cluster: Annotated[str, choice("cluster", CLUSTERS)] = "2bw-v100",
    workers: Annotated[int, steps("workers", [2, 4, 8, 16, 32, 64])] = 16,
    max_batch: Annotated[int, steps("rows a batch", [32, 64, 128, 256, 512, 1024])] = 256,
    optimizer: Annotated[str, choice("optimizer", OPTIMIZERS)] = "Adam",
) -> View:
    """Return the prediction of PipeDream-2BW's planner for every width and depth, and its choice.

    The network is in float32; ``max_batch`` is the most rows of a global batch.
    """
    machines = named(cluster, workers)
    profile = estimated(model, machines.device)
    options: Any = {"max_batch": max_batch, "optimizer_states": OPTIMIZERS[optimizer]}
    table = sweep(profile, machines, **options)
    levels = tuple(replace(level, bandwidth=math.inf) for level in machines.levels)
    free = sweep(profile, replace(machines, levels=levels), **options)
    table = table.merge(free[[*_ONE, "throughput"]], on=_ONE, suffixes=("", "_free"))
    plan = parallel_pipelines(profile, machines, **options)
    best = _best_of_each(table)
    won = plan.replicas[0], len(plan.stages)
    return View(
        text=str(plan),
        plots={"throughput": Plot(_map(best, plan, model, cluster, workers), best)},
        table=_compared(best, won),
        caption="the best of each width and depth; without links, if they cost nothing (simulated)",
    )


planner = partial(explore, see, presets=PRESETS, waits_for=ESTIMATES)


def _best_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest row that fits of each width and depth, or the leanest if none fits."""
    chosen = []
    for _, rows in table.groupby(["width", "depth"]):
        fitting = rows[rows["fits"]]
        best = fastest(fitting) if len(fitting) else rows.loc[rows["memory_bytes"].idxmin()]
        chosen.append(best.name)
    return table.loc[chosen].reset_index(drop=True)


def _map(best: pd.DataFrame, plan: Plan, model: str, cluster: str, workers: int) -> Any:
    width, depth = plan.replicas[0], len(plan.stages)
    fitting = best.assign(throughput=best["throughput"].where(best["fits"]))
    return plots.grid(
        fitting,
        x="depth",
        y="width",
        value="throughput",
        best=(depth, width),
        title=f"{model} on {cluster}: width {width}, depth {depth} wins with {plan.workers} of "
        f"{workers} workers and {fitting['throughput'].max():,.4g} rows/s",
        label="simulated",
        unit="rows/s",
        missing="does not fit",
        x_title="depth d (stages)",
        y_title="width w (pipelines)",
    )


def _compared(best: pd.DataFrame, won: tuple[int, int]) -> pd.DataFrame:
    """Return the winner, its closest rivals and the two plain ways, with what holds each back."""
    ranked = best.sort_values(["fits", "throughput"], ascending=False)
    plain = ranked[(ranked["depth"] == 1) | (ranked["width"] == 1)].drop_duplicates("depth")
    ends = [plain[plain["depth"] == 1].head(1), plain[plain["width"] == 1].head(1)]
    winner = ranked[(ranked["width"] == won[0]) & (ranked["depth"] == won[1])]
    rows = pd.concat([winner, ranked.head(_SHOWN), *ends]).drop_duplicates(["width", "depth"])
    lost = 100 * (1 - rows["throughput"] / rows["throughput_free"])
    return pd.DataFrame(
        {
            "width": rows["width"],
            "depth": rows["depth"],
            "rows a microbatch": rows["microbatch_rows"],
            "recompute": rows["recompute"].map({True: "yes", False: "no"}),
            "rows/s": rows["throughput"],
            "rows/s without links": rows["throughput_free"],
            "lost to links (%)": lost.round(1),
            "memory (GB)": (rows["memory_bytes"] / 1e9),
            "fits": rows["fits"].map({True: "yes", False: "no"}),
        }
    )
