"""Stages of about equal cost, one worker each, as GPipe and torchgpipe plan them."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.partition.balance import balance_by_cost, best_split, require_stages, stage_sums
from pipekit.planning.layer_ranges import (
    Floats,
    LayerRanges,
    exact_bytes,
    milliseconds,
    stage_plans,
)
from pipekit.planning.objectives import transfer_seconds
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile

By = Literal["variance", "block", "max"]
Of = Literal["time", "size"]


def balance(costs: Sequence[float], stages: int, by: By = "max") -> list[int]:
    """Return how many layers each stage gets; every stage gets at least one.

    Args:
        costs: of each layer, 0 or more.
        stages: at least 1, at most as many as there are layers.
        by: "max": the costliest stage is as cheap as can be.
            "variance": the variance of the stages' costs is the least that there is (what GPipe's
            partitioner aims at, section 3.2; there a heuristic, here exact).
            "block": costs of two stages differ by no more than the costliest layer's (torchgpipe,
            section 3, by the block partitions of Bárány and Grinberg).

    Raises:
        ValueError: there are more stages than layers, or a cost is negative or not finite.
    """
    if not all(0 <= cost < np.inf for cost in costs):
        raise ValueError("costs of layers are 0 or positive numbers")
    require_stages(stages, len(costs))
    require_choice("by", by, get_args(By))
    if by == "max":
        return balance_by_cost(costs, stages)
    if by == "block":
        return _block_partition(costs, stages)
    # The mean is the same for every split, so that the sum of squares decides.
    deviation = stage_sums(costs) - sum(costs) / stages
    return best_split(deviation**2, stages, np.add)


def _block_partition(costs: Sequence[float], stages: int) -> list[int]:
    """Return the block partition of Bárány and Grinberg (Israel Journal of Mathematics, 2015).

    As long as the costliest block exceeds the cheapest by more than the costliest item, the
    cheapest block that is nearest to it gets an item of its neighbour on that side.  Fractions make
    the bound hold exactly; with rounded sums the loop might not stop.
    """
    exact = [Fraction(cost) for cost in costs]
    largest = max(exact)
    edges = [len(exact) * block // stages for block in range(stages + 1)]
    sums = [sum(exact[a:b], Fraction(0)) for a, b in pairwise(edges)]
    giver = costliest = sums.index(max(sums))
    while True:
        if giver == costliest:
            costliest = sums.index(max(sums))
        cheapest = min(range(stages), key=lambda block: (sums[block], abs(block - costliest)))
        if sums[costliest] - sums[cheapest] <= largest:
            lengths = [b - a for a, b in pairwise(edges) if b > a]
            # Beside an empty block none exceeds the costliest item, and their parts do not either.
            while len(lengths) < stages:
                longest = lengths.index(max(lengths))
                lengths[longest : longest + 1] = [lengths[longest] - 1, 1]
            return lengths
        giver = cheapest + (1 if cheapest < costliest else -1)
        if giver > cheapest:
            moved = exact[edges[giver]]
            edges[giver] += 1
        else:
            edges[cheapest] -= 1
            moved = exact[edges[cheapest]]
        sums[giver] -= moved
        sums[cheapest] += moved


def balanced(
    profile: Profile,
    cluster: Cluster,
    *,
    stages: int | None = None,
    by: By = "max",
    of: Of = "time",
    microbatches: int = 1,
    recompute: Recompute = "never",
    optimizer_states: float = 1,
) -> Plan:
    """Return stages of about equal cost, stage i on worker i; no link and no memory counts for it.

    A microbatch takes the seconds of the slowest stage's passes, recomputation counted, or of the
    slowest transfer there and back.  A worker keeps one weight version, gradients, the optimizer's
    state, buffers, and the activations of all microbatches; with recomputation all inputs, and the
    activations of one microbatch (and of the last, if that is not recomputed).

    Args:
        profile: costs of a microbatch.
        cluster: the workers and their links.
        stages: how many; by default one a worker.
        by: see :func:`balance`, which says how good each is.
        of: "time" (of both passes) or "size" (all bytes that one microbatch takes).
        microbatches: in a batch.
        recompute: which microbatches are recomputed.
        optimizer_states: tensors of a parameter's size that it keeps: 1 with momentum, 2 for Adam.

    Raises:
        ValueError: there are more stages than layers or workers, or they do not fit the memory.
    """
    require_choice("recompute", recompute, get_args(Recompute))
    stages = cluster.workers if stages is None else stages
    if stages > cluster.workers:
        raise ValueError(
            f"{stages} stages need {stages} workers, and cluster {cluster.name!r} has "
            f"{cluster.workers}: use at most {cluster.workers} stages"
        )
    each = balance(_costs(profile, of, optimizer_states), stages, by)
    stop, ranges = np.cumsum(each), LayerRanges(profile)
    again = 1 if recompute == "never" else 2
    forward, backward = (ranges.total(n, stop - each, stop) for n in ("forward_s", "backward_s"))
    seconds = again * forward + backward
    memory = _gpipe_bytes(ranges, each, microbatches, recompute, optimizer_states)
    if memory.max() > cluster.device.memory_bytes:
        raise ValueError(
            f"stage {memory.argmax()} does not fit the "
            f"{exact_bytes(cluster.device.memory_bytes)} of a worker: give each at least "
            f"{exact_bytes(memory.max())}"
        )
    transfers = [
        float(transfer_seconds(ranges.boundary_bytes[layer], cluster.level_between(a, b)))
        for (a, b), layer in zip(pairwise(range(stages)), stop[:-1], strict=True)
    ]
    slowest = int(seconds.argmax())
    what = f"the compute of stage {slowest} ({milliseconds(seconds.max())})"
    if transfers and max(transfers) > seconds.max():
        slowest = int(np.argmax(transfers))
        what = f"the transfer from stage {slowest} ({milliseconds(transfers[slowest])})"
    return Plan(
        method="balance",
        stages=stage_plans(each, seconds, memory, recompute=recompute),
        microbatch_rows=profile.rows,
        microbatches=microbatches,
        in_flight=microbatches,
        predicted_s=max(float(seconds.max()), *transfers, 0.0),
        why=f"Balanced {of} by {by}. The slowest is {what}; stages of equal time would take "
        f"{milliseconds(seconds.mean())}.",
    )


def _gpipe_bytes(
    ranges: LayerRanges,
    balance: Sequence[int],
    microbatches: int,
    recompute: Recompute,
    states: float,
) -> Floats:
    """Return the most bytes of each stage, reached as one of the first two backwards starts.

    At the first all microbatches are in flight, at the second all gradients are there.
    """
    stop = np.cumsum(balance)
    first = stop - balance
    made = {"never": microbatches, "except_last": 2, "always": 1}[recompute]
    one = ranges.first_gradient_bytes(first, stop)
    found = [
        ranges.worker_bytes(first, stop, 1 + states, count, min(made, count), gradients)
        for count, gradients in ((microbatches, one), (microbatches - 1, None))
    ]
    return np.maximum(*found)


def _costs(profile: Profile, of: Of, optimizer_states: float) -> list[float]:
    require_choice("of", of, get_args(Of))
    if of == "time":
        return [layer.forward_s + layer.backward_s for layer in profile.layers]
    copies = 2 + optimizer_states  # weights and gradients
    return [
        copies * layer.parameter_bytes + layer.buffer_bytes + layer.saved_bytes
        for layer in profile.layers
    ]
