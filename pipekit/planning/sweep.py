"""PipeDream-2BW's planner: parallel pipelines of equally replicated stages (section 4)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count, groupby, product, takewhile
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Paths
from pipekit.partition.balance import balance_by_cost
from pipekit.planning.layer_ranges import Floats, LayerRanges, exact_bytes, stage_plans
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile

_TIE = 1e-9  # throughputs that differ by less than this part are equal
_WEIGHT_VERSIONS = 2  # double-buffered weights


def parallel_pipelines(
    profile: Profile | Mapping[int, Profile],
    cluster: Cluster,
    *,
    max_batch: int,
    optimizer_states: float = 2,
) -> Plan:
    """Return the fastest of all parallel pipelines that fit (PipeDream-2BW, section 4).

    See :func:`sweep` for what is compared and how it is estimated.  Of equal throughputs (to one
    part in 10^9) it takes the one on the fewest workers, then without recomputation, then with the
    most rows (section 4.1 asks for the largest microbatch that fits), then the shallowest.

    Args:
        profile: costs of a microbatch, taken to be proportional to its rows; or several profiles,
            by rows, of which each is taken as it is.
        max_batch: rows that a global batch may have at most (B in section 4).
        cluster, optimizer_states: as for :func:`.plan`.

    Raises:
        ValueError: nothing fits the memory or the batch; the message says what would.
    """
    table = sweep(profile, cluster, max_batch=max_batch, optimizer_states=optimizer_states)
    fits = table[table["fits"]]
    if fits.empty:
        least = table.loc[table["memory_bytes"].idxmin()]
        raise ValueError(
            f"no plan fits the {exact_bytes(cluster.device.memory_bytes)} of a worker: on up to "
            f"{cluster.workers} workers, give each at least {exact_bytes(least['memory_bytes'])}, "
            f"which {_text(least)} needs"
        )
    best = fastest(fits)
    width, depth, rows = int(best["width"]), int(best["depth"]), int(best["microbatch_rows"])
    microbatches, recompute = int(best["microbatches"]), bool(best["recompute"])
    scaled = profile.scaled(rows) if isinstance(profile, Profile) else profile[rows]
    balance = _balances(profile, cluster)[depth]
    stages = _Stages(LayerRanges(scaled), balance, optimizer_states, recompute)
    seconds = stages.seconds(placed(cluster, width, depth), microbatches, transfers=False)
    others = {"data parallelism (depth 1)": "depth", "a single pipeline (width 1)": "width"}
    compared = []
    for name, column in others.items():
        rate = fits.loc[fits[column] == 1, "throughput"].max()
        compared.append(f"{name} does not fit" if np.isnan(rate) else f"{name} {rate:.4g}")
    when: Recompute = "always" if recompute else "never"
    return Plan(
        method="parallel_pipelines",
        stages=stage_plans(balance, seconds, stages.memory_bytes(width), width, when),
        microbatch_rows=rows,
        microbatches=microbatches,
        in_flight=depth,
        predicted_s=float(best["seconds"]),
        why=f"{_text(best).capitalize()} has the highest throughput that fits, "
        f"{best['throughput']:.4g} rows/s; {', '.join(compared)}.",
    )


def fastest(rows: pd.DataFrame) -> pd.Series:
    """Return the fastest of some rows of a sweep; of equal ones as :func:`parallel_pipelines`."""
    equal = rows[rows["throughput"] >= rows["throughput"].max() * (1 - _TIE)]
    ordered = equal.assign(workers=equal["width"] * equal["depth"]).sort_values(
        ["workers", "recompute", "microbatch_rows", "depth"],
        ascending=[True, True, False, True],
        kind="stable",
    )
    return ordered.iloc[0]


def _text(row: pd.Series) -> str:
    return (
        f"width {row['width']}, depth {row['depth']}, {row['microbatch_rows']} rows a microbatch, "
        f"{'with' if row['recompute'] else 'without'} recomputation"
    )


def sweep(
    profile: Profile | Mapping[int, Profile],
    cluster: Cluster,
    *,
    max_batch: int,
    optimizer_states: float = 2,
) -> pd.DataFrame:
    """Return what every configuration would do: one row each.

    Compared are all widths w and depths d on at most all workers, every microbatch size b, with and
    without recomputation.  A single profile is scaled to b = 1, 2, 4, ... rows.  A pipeline runs as
    many microbatches a batch as max_batch allows, m = floor(max_batch / (w b)), and at least d;
    :func:`block_balance` says which layers make a stage.

    A microbatch of one pipeline takes max over stages of max(compute + transfers, all-reduce / m):
    ``compute`` is forward and backward and 1 / m of the optimizer's step, and the forward again if
    it is recomputed; ``transfers`` are the activation and the gradient that come in; the all-reduce
    is hidden behind the m microbatches of a batch.  (The paper's Appendix A was not at hand.)

    Stage i of d (from 0) holds two weight versions, one sum of gradients, the optimizer's state,
    its buffers, and for d - i microbatches in flight their activations, or only their inputs and
    one microbatch's activations if it is recomputed.  If w > 1, a second sum of gradients waits for
    its late update, and the last stage has one weight version.

    Args:
        profile, cluster, max_batch, optimizer_states: as for :func:`parallel_pipelines`.

    Returns:
        Columns width, depth, microbatch_rows, microbatches, recompute, seconds (a microbatch of one
        pipeline), memory_bytes (of the fullest worker), batch_rows, throughput (rows/s of all
        pipelines), fits.

    Raises:
        ValueError: no microbatch is as small as ``max_batch``.
    """
    ranges = {rows: LayerRanges(scaled) for rows, scaled in _by_rows(profile, max_batch).items()}
    records = []
    for depth, balance in _balances(profile, cluster).items():
        widths = range(1, cluster.workers // depth + 1)
        placements = {width: placed(cluster, width, depth) for width in widths}
        for (rows, span), recompute in product(ranges.items(), (False, True)):
            stages = _Stages(span, balance, optimizer_states, recompute)
            for width, placement in placements.items():
                microbatches = max_batch // (width * rows)
                if microbatches < depth:
                    break
                seconds = float(stages.seconds(placement, microbatches).max())
                memory = float(stages.memory_bytes(width).max())
                records.append((width, depth, rows, microbatches, recompute, seconds, memory))
    columns = "width", "depth", "microbatch_rows", "microbatches", "recompute", "seconds"
    table = pd.DataFrame(records, columns=[*columns, "memory_bytes"])
    rows_at_once = table["width"] * table["microbatch_rows"]
    return table.assign(
        batch_rows=rows_at_once * table["microbatches"],
        throughput=rows_at_once / table["seconds"],
        fits=table["memory_bytes"] <= cluster.device.memory_bytes,
    )


class Placement(NamedTuple):
    """What parallel pipelines have of their links."""

    reducing: Floats  # seconds of each stage's all-reduce alone, a byte of its parameters
    passing: Floats  # from each stage to the next, of all pipelines at once, a byte of a microbatch


def placed(cluster: Cluster, width: int, depth: int) -> Placement:
    """Place parallel pipelines, the replicas of a stage being neighbours.

    Replica r of stage i is worker ``i * width + r`` (PipeDream-2BW, section 3.3).
    """
    paths = Paths(cluster)
    # Stages that begin at the same place of their server use the same links of another one.
    period = cluster.group_size(cluster.levels[-2]) if len(cluster.levels) > 1 else 1
    firsts = [stage * width % period for stage in range(depth)]

    @cache
    def reducing(first: int) -> float:
        path = paths.all_reduce(range(first, first + width))
        return path.flow / path.alone

    @cache
    def passing(first: int) -> float:
        load = defaultdict[int, float](float)
        for source in range(first, first + width):
            for port, share in paths.message(source, source + width).ports:
                load[port] += share
        return max(share / paths.capacity[port] for port, share in load.items())

    sums = [0.0 if width == 1 else reducing(first) for first in firsts]
    return Placement(np.array(sums), np.array([passing(first) for first in firsts[:-1]], float))


class _Stages:
    def __init__(
        self, ranges: LayerRanges, balance: Sequence[int], optimizer_states: float, recompute: bool
    ) -> None:
        stop = np.cumsum(balance)
        first = stop - balance
        forward, backward, self._update, self._parameters = (
            ranges.total(each, first, stop)
            for each in ("forward_s", "backward_s", "update_s", "parameter_bytes")
        )
        self._compute = (2 if recompute else 1) * forward + backward
        self._sent = ranges.boundary_bytes[stop[:-1]]
        in_flight = np.arange(len(stop), 0, -1)
        tensors, kept = _WEIGHT_VERSIONS + optimizer_states, 1 if recompute else None
        self._one_pipeline_bytes = ranges.worker_bytes(first, stop, tensors, in_flight, kept)

    def memory_bytes(self, width: int) -> Floats:
        """Return the bytes on a worker of every stage, of so many pipelines."""
        waiting = self._parameters * (width > 1)  # a sum of gradients
        waiting[-1] = 0  # in place of a weight version
        return self._one_pipeline_bytes + waiting

    def seconds(self, placement: Placement, microbatches: int, transfers: bool = True) -> Floats:
        """Return the seconds a microbatch of every stage."""
        busy = self._compute + self._update / microbatches
        if transfers:
            passing = placement.passing * self._sent
            busy[1:] += passing  # the activation comes in
            busy[:-1] += passing  # the gradient comes in
        return np.maximum(busy, placement.reducing * self._parameters / microbatches)


def block_balance(profile: Profile, depth: int) -> list[int]:
    """Return how many layers each stage gets: equal numbers of blocks, if they divide so.

    The blocks are the longest run of layers with parameters and outputs of equal size, if they make
    up half of the computation; the ends have the layers before and after them.  Else the stage that
    computes longest is as short as can be.
    """
    costs = [layer.forward_s + layer.backward_s for layer in profile.layers]
    sizes = [(layer.parameter_bytes, layer.output_bytes) for layer in profile.layers]
    blocks = max((list(run) for _, run in groupby(range(len(sizes)), sizes.__getitem__)), key=len)
    if len(blocks) % depth or 2 * sum(costs[i] for i in blocks) < sum(costs):
        return balance_by_cost(costs, depth)
    balance = [len(blocks) // depth] * depth
    balance[0] += blocks[0]
    balance[-1] += len(profile) - 1 - blocks[-1]
    return balance


def _balances(profile: Profile | Mapping[int, Profile], cluster: Cluster) -> dict[int, list[int]]:
    """Return the balance for every depth; of several profiles, the one of fewest rows decides."""
    decides = profile if isinstance(profile, Profile) else profile[min(profile)]
    depths = range(1, min(cluster.workers, len(decides)) + 1)
    return {depth: block_balance(decides, depth) for depth in depths}


def _by_rows(profile: Profile | Mapping[int, Profile], max_batch: int) -> dict[int, Profile]:
    """Return the profiles of all microbatches that the global batch allows, by their rows."""
    if isinstance(profile, Profile):
        sizes = takewhile(lambda rows: rows <= max_batch, (2**k for k in count()))
        found, least = {rows: profile.scaled(rows) for rows in sizes}, 1
    else:
        found = {rows: profile[rows] for rows in sorted(profile) if rows <= max_batch}
        least = min(profile, default=1)
    if not found:
        raise ValueError(
            f"max_batch {max_batch} holds no microbatch of {least} rows: use at least {least}"
        )
    return found
