"""How fast things run: the same run at another pace, and calls that are timed in turns.

The engine takes some tenths of a millisecond between two passes.  An emulation is slowed down so
that these count little, or sped up so that it ends soon.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.engine import Run
from pipekit.papers.costs import with_costs
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule


def stretched(profile: Profile, factor: float) -> Profile:
    """Return a profile whose computing takes ``factor`` times as long; bytes stay."""
    return with_costs(
        profile,
        forward_s=lambda layer: layer.forward_s * factor,
        backward_s=lambda layer: layer.backward_s * factor,
        update_s=lambda layer: layer.update_s * factor,
        copy_s=lambda layer: layer.copy_s * factor,
    )


def faster_links(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose links carry ``factor`` times as much a second."""
    for level in cluster.levels:
        origin = f"{level.effective.origin if level.effective else 'nominal'}, times {factor:g}"
        cluster = cluster.calibrated(level.name, level.used_bandwidth * factor, origin)
    return cluster


def emulate_at_pace(
    schedule: Schedule, profile: Profile, plan: Plan, cluster: Cluster | None, faster: float
) -> Run:
    """Emulate a schedule in time that runs ``faster`` times as fast as the profile's.

    ``faster`` is above 1 to take less time, below 1 to take more; without a cluster messages are as
    fast as threads hand them over. The trace is in the profile's own seconds again, without
    transfers.
    """
    links = cluster and faster_links(cluster, faster)
    run = emulate(schedule, stretched(profile, 1 / faster), plan, links)
    times = run.trace.frame[["start_s", "end_s"]] * faster
    frame = run.trace.frame.assign(**times)
    trace = replace(run.trace, frame=frame, transfers=None, origin_ns=None)
    return replace(run, other_trace=trace)


def in_turns(
    runs: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] | None = None
) -> NDArray[np.float64]:
    """Return the seconds that each of some calls took, [rounds, calls].

    They take turns, as a shared machine is not always equally fast; by default a thread's own
    seconds count, without what other programs take of its core.
    """
    now = clock or time.thread_time

    def seconds(run: Callable[[], object]) -> float:
        start = now()
        run()
        return now() - start

    return np.array([[seconds(run) for run in runs] for _ in range(rounds)])
