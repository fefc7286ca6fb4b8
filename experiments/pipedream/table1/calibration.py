"""The bandwidth that explains published speeds of data parallelism.

The bandwidths that PipeDream prints do not explain its Table 1.  The *effective* bandwidth does for
the cells that it is fitted on, one number for all networks of a cluster: with it, simulated data
parallelism is as fast as the paper's, in the geometric mean.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from scipy.optimize import brentq

from experiments.pipedream.settings import ROWS
from experiments.pipedream.table1.rows import CALIBRATED_ON, Setting, printed
from experiments.pipedream.table1.speeds import compute_seconds, data_parallel, simulated_seconds
from experiments.study.costs import published
from pipekit.clusters import Cluster
from pipekit.profiling import Profile

BANDWIDTHS = 1e6, 1e12
"""Bytes/s between which an effective bandwidth is looked for."""


def bsp_speedup(profile: Profile, cluster: Cluster) -> float:
    """Return the simulated speedup of data parallelism on all of a cluster over one machine."""
    plan = data_parallel(profile, cluster.workers)
    one_round = simulated_seconds(profile, plan, cluster, minibatches=cluster.workers)
    return compute_seconds(profile) / one_round


class Cell(NamedTuple):
    """A published speedup of data parallelism over one machine."""

    profile: Profile
    cluster: Cluster
    speedup: float


def effective(cells: Sequence[Cell]) -> float:
    """Return the bytes/s with which simulated data parallelism is as fast as published.

    One bandwidth for all cells, with which the geometric mean of simulated over published speedups
    is 1.  What is fitted is one number for all that the simulator does not know: copies between GPU
    and host, serialisation, other users of the network.

    Raises:
        ValueError: no bandwidth gives the speedup of one of the cells; the message says what is
            possible.
    """
    low, high = map(math.log, BANDWIDTHS)
    for cell in cells:
        least, most = _speedup(cell, low), _speedup(cell, high)
        if not least < cell.speedup < most:
            raise ValueError(
                f"no bandwidth gives a speedup of {cell.speedup:g}: on {cell.cluster.workers} "
                f"workers it is between {least:.2g} and {most:.4g}"
            )

    def miss(exponent: float) -> float:
        return sum(math.log(_speedup(cell, exponent) / cell.speedup) for cell in cells)

    return math.exp(brentq(miss, low, high, rtol=1e-9))


def _speedup(cell: Cell, exponent: float) -> float:
    level = cell.cluster.levels[0].name
    linked = cell.cluster.calibrated(level, math.exp(exponent), "a trial")
    return bsp_speedup(cell.profile, linked)


@cache
def profile_of(setting: Setting, files: str = "") -> Profile:
    """Return what a minibatch costs on one worker: estimated, or from ``files``, "{model}.json"."""
    if files:
        return Profile.load(files.format(model=setting.model))
    return published(setting.model, ROWS[setting.model], setting.machines().device)


def cell_of(row: Setting, files: str = "") -> Cell:
    """Return Table 1's BSP speedup of a row."""
    return Cell(profile_of(row, files), row.machines(), float(printed(row, "bsp-speedup")))


@cache
def _fitted(rows: tuple[Setting, ...], files: str) -> float:
    return effective([cell_of(row, files) for row in rows])


def calibrated(setting: Setting, files: str = "") -> Cluster:
    """Return the machines of a setting with the bandwidth fitted on its cluster's cells."""
    return _on(setting, CALIBRATED_ON[setting.cluster], files)


def without(row: Setting, files: str = "") -> Cluster:
    """Return the same for a row of the fit, with the bandwidth that the other cells alone give."""
    return _on(row, tuple(x for x in CALIBRATED_ON[row.cluster] if x != row), files)


def _on(setting: Setting, rows: tuple[Setting, ...], files: str) -> Cluster:
    origin, machines = " and ".join(row.name for row in rows), setting.machines()
    level, bandwidth = machines.levels[0].name, _fitted(rows, files)
    return machines.calibrated(level, bandwidth, f"BSP of {origin}, Table 1")
