"""Which layers of each stage to recompute, so that every worker has room."""

import numpy as np
from numpy.typing import NDArray

from pipekit.planning.layer_ranges import Floats, LayerRanges, exact_bytes
from pipekit.plans import Plan, StagePlan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, check
from pipekit.schedules.schedule import beginning


def layers_to_recompute(
    profile: Profile,
    plan: Plan,
    schedule: Schedule,
    memory_bytes: float,
    *,
    optimizer_states: float = 1,
) -> tuple[int, ...]:
    """Return the layers to recompute: workers fit, and compute again as little as they can.

    A worker's choice is a knapsack: the layers whose forwards take longest keep their activations,
    as often as microbatches are in flight at once (adaptive recomputation in AdaPipe, Sun et al.,
    ASPLOS 2024).  What a layer frees is there again for the moment of its backward; if anything is
    recomputed, there is room for the largest.  ``profile.recomputing(layers)`` has the costs.

    Args:
        profile: what each layer of a chain costs.
        plan: the stages.
        schedule: by which they train.
        memory_bytes: of each worker.
        optimizer_states: tensors of a parameter's size that the optimizer keeps for each.

    Raises:
        ValueError: a worker has no room even if it recomputes all its layers; or the plan is for
            another schedule.
    """
    if len(plan.stages) != schedule.stages:
        raise ValueError(
            f"the plan has {len(plan.stages)} stages and the schedule {schedule.stages}: build the "
            f"schedule for {len(plan.stages)} stages"
        )
    profile = profile.scaled(plan.microbatch_rows, schedule.chunks)
    some = beginning(schedule, 3)
    ranges, versions = LayerRanges(profile), check(schedule).peak_versions
    chosen: list[int] = []
    for worker, tasks in enumerate(some.workers):
        stages = sorted({task.stage for task in tasks})
        cuts = [plan.stages[stage] for stage in stages]
        more = [[task.op.in_flight * (task.stage == stage) for stage in stages] for task in tasks]
        in_flight = np.unique(np.cumsum(more, axis=0), axis=0)  # [moments, stages]
        tensors = versions[worker] / len(stages) + optimizer_states
        parts = [
            ranges.worker_bytes(cut.first, cut.stop, tensors, each)
            for cut, each in zip(cuts, in_flight.T, strict=True)
        ]
        held = np.sum(parts, axis=0)  # bytes at each moment, nothing being recomputed
        if held.max() <= memory_bytes:
            continue
        pairs = [(layer, cut) for cut in cuts for layer in range(cut.first, cut.stop)]
        seconds = np.array([profile.layers[layer].forward_s for layer, _ in pairs])
        each = np.array(
            [_kept(profile, cut) - _kept(profile.recomputing([layer]), cut) for layer, cut in pairs]
        )
        freed = each * np.repeat(in_flight, [cut.stop - cut.first for cut in cuts], axis=1)
        needed = held + each.max() - memory_bytes
        again = _cheapest(seconds, freed, needed)
        if again is None:
            least = memory_bytes + (needed - freed.clip(0).sum(axis=1)).max()
            raise ValueError(
                f"worker {worker} has no room for its layers in {exact_bytes(memory_bytes)} if it "
                f"recomputes them all: give it {exact_bytes(least)}, or cut the model into more "
                f"stages or its batches into smaller microbatches"
            )
        chosen += [layer for (layer, _), is_again in zip(pairs, again, strict=True) if is_again]
    return tuple(sorted(chosen))


def _kept(costs: Profile, cut: StagePlan) -> float:
    """Return what a stage keeps of a microbatch."""
    return sum(layer.saved_bytes for layer in costs.layers[cut.first : cut.stop])


def _cheapest(seconds: Floats, freed: Floats, needed: Floats) -> NDArray[np.bool_] | None:
    """Return the layers of the least seconds that free what is needed; None: all do not.

    ``seconds`` are by ``[layers]``, bytes ``freed`` by ``[moments, layers]``, ``needed`` by
    ``[moments]``.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # here: it takes a second

    scale = np.abs(freed).max() or 1.0
    found = milp(
        seconds,
        integrality=[1] * len(seconds),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(freed / scale, lb=needed / scale),
        options={"mip_rel_gap": 0.0},
    )
    return None if found.x is None else found.x > 0.5
