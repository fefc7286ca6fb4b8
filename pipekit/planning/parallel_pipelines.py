"""PipeDream-2BW's planner: parallel pipelines of equally replicated stages (section 4)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster
from pipekit.planning.layer_ranges import LayerRanges, bytes_text
from pipekit.planning.sweep import Placement, Stages, balances, sweep
from pipekit.plans import Plan, StagePlan
from pipekit.profiling import Profile

_TIE = 1e-9  # throughputs that differ by less than this part are equal


def parallel_pipelines(
    profile: Profile | Mapping[int, Profile],
    cluster: Cluster,
    *,
    max_batch: int,
    optimizer_states: float = 2,
    progress: bool = False,
) -> Plan:
    """Return the fastest of all parallel pipelines that fit (PipeDream-2BW, section 4).

    See :func:`sweep` for what is compared and how it is estimated.  Of equal throughputs (to one
    part in 10^9) it takes the one on the fewest workers, then without recomputation, then with the
    most rows (section 4.1 asks for the largest microbatch that fits), then the shallowest.

    Args:
        profile: costs of a microbatch, taken to be proportional to its rows; or several profiles,
            by rows, of which each is taken as it is.
        cluster: the workers and their links.
        max_batch: rows that a global batch may have at most (B in section 4).
        optimizer_states: tensors of a parameter's size that the optimizer keeps for each: 0 for
            plain SGD, 1 with momentum, 2 for Adam; 6 for Adam in mixed precision, where weights
            of 2 bytes have a copy and two moments of 4 bytes each.
        progress: whether to show a bar, if it takes more than a second.

    Raises:
        ValueError: nothing fits the memory or the batch; the message says what would.
    """
    table = sweep(
        profile,
        cluster,
        max_batch=max_batch,
        optimizer_states=optimizer_states,
        progress=progress,
    )
    fits = table[table["fits"]]
    if fits.empty:
        least = table.loc[table["memory_bytes"].idxmin()]
        raise ValueError(
            f"no plan fits the {bytes_text(cluster.device.memory_bytes)} of a worker: on up to "
            f"{cluster.workers} workers, give each at least {bytes_text(least['memory_bytes'])}, "
            f"which {_text(least)} needs"
        )
    return _plan(fastest(fits), fits, profile, cluster, optimizer_states)


def fastest(rows: pd.DataFrame) -> pd.Series:
    """Return the fastest of some rows of a sweep; of equal ones as :func:`parallel_pipelines`."""
    equal = rows[rows["throughput"] >= rows["throughput"].max() * (1 - _TIE)]
    ordered = equal.assign(workers=equal["width"] * equal["depth"]).sort_values(
        ["workers", "recompute", "microbatch_rows", "depth"],
        ascending=[True, True, False, True],
        kind="stable",
    )
    return ordered.iloc[0]


def _plan(
    best: pd.Series,
    fits: pd.DataFrame,
    profile: Profile | Mapping[int, Profile],
    cluster: Cluster,
    optimizer_states: float,
) -> Plan:
    """Return a row of the sweep as a plan."""
    width, depth, rows = int(best["width"]), int(best["depth"]), int(best["microbatch_rows"])
    scaled = profile.scaled(rows) if isinstance(profile, Profile) else profile[rows]
    stop = np.cumsum(balances(profile, cluster)[depth])
    first = np.array([0, *stop[:-1]])
    recompute = bool(best["recompute"])
    stages = Stages(LayerRanges(scaled), first, stop, optimizer_states, recompute)
    seconds = stages.seconds(
        Placement(cluster, width, depth), int(best["microbatches"]), transfers=False
    )
    memory = stages.memory_bytes(width)
    others = {
        "data parallelism (depth 1)": fits[fits["depth"] == 1],
        "a single pipeline (width 1)": fits[fits["width"] == 1],
    }
    compared = ", ".join(
        f"{name} " + (f"{table['throughput'].max():.4g}" if len(table) else "does not fit")
        for name, table in others.items()
    )
    return Plan(
        method="parallel_pipelines",
        stages=tuple(
            StagePlan(
                int(first[i]),
                int(stop[i]),
                width,
                "always" if recompute else "never",
                float(seconds[i]),
                float(memory[i]),
            )
            for i in range(depth)
        ),
        microbatch_rows=rows,
        microbatches=int(best["microbatches"]),
        in_flight=depth,
        predicted_s=float(best["seconds"]),
        why=f"{_text(best)[0].upper()}{_text(best)[1:]} has the highest throughput that fits, "
        f"{best['throughput']:.4g} rows/s; {compared}.",
    )


def _text(row: pd.Series) -> str:
    """Return a row of the sweep for a message."""
    return (
        f"width {row['width']}, depth {row['depth']}, {row['microbatch_rows']} rows a microbatch, "
        f"{'with' if row['recompute'] else 'without'} recomputation"
    )
