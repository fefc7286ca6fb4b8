"""The bandwidth that explains a published speed of data parallelism.

The bandwidths that PipeDream prints do not explain its Table 1.  The *effective* bandwidth does for
the cells that it is fitted on: with it, simulated data parallelism is as fast as the paper's.
"""

import math
from dataclasses import replace
from functools import cache

from scipy.optimize import brentq

from pipekit.clusters import Cluster
from pipekit.papers.costs import published
from pipekit.papers.pipedream.settings import ROWS
from pipekit.papers.pipedream.table1.rows import CALIBRATED_ON, Setting, printed
from pipekit.papers.pipedream.table1.speeds import compute_seconds, data_parallel, simulated_seconds
from pipekit.profiling import Profile

BANDWIDTHS = 1e6, 1e12
"""Bytes/s between which an effective bandwidth is looked for."""


def bsp_speedup(profile: Profile, cluster: Cluster) -> float:
    """Return the simulated speedup of data parallelism on all of a cluster over one machine."""
    plan = data_parallel(profile, cluster.workers)
    one_round = simulated_seconds(profile, plan, cluster, minibatches=cluster.workers)
    return compute_seconds(profile) / one_round


def effective(profile: Profile, cluster: Cluster, speedup: float, origin: str) -> Cluster:
    """Return the cluster with the bandwidth at which simulated data parallelism is as published.

    What is fitted is one number for all that the simulator does not know: parameter servers in
    place of a ring, copies between GPU and host, serialisation, other users of the network.
    ``speedup`` is that of the cell ``origin``, over one machine. If no bandwidth gives it, it is a
    ValueError which says what is possible.
    """

    def miss(exponent: float) -> float:
        link = cluster.calibrated(name, math.exp(exponent), origin)
        return bsp_speedup(profile, link) - speedup

    name = cluster.levels[0].name
    low, high = map(math.log, BANDWIDTHS)
    if not miss(low) < 0 < miss(high):
        raise ValueError(
            f"no bandwidth gives a speedup of {speedup:g}: on {cluster.workers} workers it is "
            f"between {miss(low) + speedup:.2g} and {miss(high) + speedup:.4g}"
        )
    return cluster.calibrated(name, math.exp(brentq(miss, low, high, rtol=1e-9)), origin)


@cache
def profile_of(setting: Setting, files: str = "") -> Profile:
    """Return what a minibatch costs on one worker: estimated, or from ``files``, "{model}.json"."""
    if files:
        return Profile.load(files.format(model=setting.model))
    return published(setting.model, ROWS[setting.model], setting.machines().device)


def calibrated(setting: Setting, files: str = "") -> Cluster:
    """Return the machines of a setting with the bandwidth fitted on its calibration cell."""
    cell = CALIBRATED_ON[setting.model, setting.cluster]
    fitted = effective(
        profile_of(cell, files),
        cell.machines(),
        float(printed(cell, "bsp-speedup")),
        f"BSP speedup of {cell.name}, Table 1",
    )
    return replace(
        fitted, levels=tuple(replace(level, width=setting.workers) for level in fitted.levels)
    )
