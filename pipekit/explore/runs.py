"""What explorers simulate: a method's schedule on as many stages, and a network cut for it."""

import math
from dataclasses import replace
from functools import lru_cache

from pipekit.clusters import flat
from pipekit.planning import plan
from pipekit.planning.balance import Of
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH

REMEMBERED = 64
"""Schedules that need not be made again when costs change, or a control goes back."""


def made(name: str, replicas: list[int], microbatches: int, batches: int) -> Schedule:
    """Return a method's schedule; one that does not cut minibatches gets as many whole ones."""
    return _made(name, tuple(replicas), microbatches, batches)


@lru_cache(REMEMBERED)
def _made(name: str, replicas: tuple[int, ...], microbatches: int, batches: int) -> Schedule:
    if name in PER_MINIBATCH:
        schedule = METHODS[name]([*replicas], 1).take(microbatches * batches)
    else:
        schedule = METHODS[name]([*replicas], microbatches).take(batches)
    # What repeats is written out: it is gone through a dozen times while a slider moves.
    return replace(schedule, head=tuple(map(tuple, schedule.workers)))


def cut(
    profile: Profile,
    schedule: Schedule,
    *,
    of: Of = "time",
    recompute: Recompute = "never",
    optimizer_states: float = 0.0,
) -> Plan:
    """Return a network's layers in as many stages as a schedule has, about equal in ``of``.

    Raises:
        ValueError: the network has fewer layers.
    """
    planned = plan(
        profile,
        flat(schedule.stages, math.inf),
        "balance",
        of=of,
        recompute=recompute,
        optimizer_states=optimizer_states,
    )
    return planned.with_replicas([len(workers) for workers in schedule.stage_workers])
