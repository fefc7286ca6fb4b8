"""The rows of PipeDream's Table 1 as printed (5.1, 5.2), and the bandwidth that explains them.

The bandwidths that PipeDream prints do not explain its Table 1.  The *effective* bandwidth does for
the cells that it is fitted on, one number for all networks of a cluster: with it, simulated data
parallelism is as fast as the paper's, in the geometric mean.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from scipy.optimize import brentq

from experiments import study
from experiments.pipedream.settings import ROWS
from experiments.pipedream.table1.plans import compute_seconds, data_parallel, simulated_seconds
from experiments.study.published_times import as_published, network_times
from pipekit.clusters import Cluster, pipedream_a, pipedream_b
from pipekit.clusters.cluster import AllReduce
from pipekit.profiling import Profile

_CLUSTERS = {"A": pipedream_a, "B": pipedream_b}


class Setting(NamedTuple):
    """A network on so many workers of a cluster, "A" or "B"."""

    model: str
    workers: int
    cluster: str

    @property
    def name(self) -> str:
        """As the ledger of claims has it, say "vgg16-4A"."""
        return f"{self.model.removesuffix('-v3')}-{self.workers}{self.cluster}"

    def machines(self, sums: AllReduce = "ring") -> Cluster:
        """Return the workers, with the bandwidth that the paper prints; they sum in some way."""
        return replace(_CLUSTERS[self.cluster](self.workers), all_reduce=sums)


TABLE1 = FOUR, EIGHT, SIXTEEN, EIGHT_B, INCEPTION, INCEPTION_B, S2VT = (
    Setting("vgg16", 4, "A"),
    Setting("vgg16", 8, "A"),
    Setting("vgg16", 16, "A"),
    Setting("vgg16", 8, "B"),
    Setting("inception-v3", 8, "A"),
    Setting("inception-v3", 8, "B"),
    Setting("s2vt", 4, "A"),
)
"""The rows of Table 1."""

THROUGHPUT = RESNET, ALEXNET = Setting("resnet50", 8, "B"), Setting("alexnet", 8, "B")
"""What section 5.2 reports without end-to-end results."""

MINIBATCHES = 32, 128
"""Rows that a machine's minibatch of :data:`THROUGHPUT` may have, since the paper prints none: the
other image networks', and those of ResNet-50's released profile."""

CALIBRATED_ON = {"A": (FOUR,), "B": (EIGHT_B, INCEPTION_B)}
"""The rows whose BSP cells give the one bandwidth of a cluster: those that the ledger has named as
calibration cells from its beginning, but for S2VT, of which the paper prints no layers: nothing can
be fitted on layers of ours."""

FITTED = frozenset(CALIBRATED_ON["A"] + CALIBRATED_ON["B"])
"""The rows whose BSP cell is no prediction."""


def printed(setting: Setting, column: str) -> str:
    """Return what Table 1 prints of a row, say in column "pp-over-bsp", read from the ledger."""
    return study.printed(f"pipedream-table1-{setting.name}-{column}")


def printed_number(setting: Setting, column: str) -> float | None:
    """Return the same as a number; None for a setting that is no row of Table 1."""
    return float(printed(setting, column)) if setting in TABLE1 else None


def replicas_of(config: str) -> list[int]:
    """Return the replicas of each stage of a configuration: "2-1-1" is [2, 1, 1]."""
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", config):
        raise ValueError(f"{config!r} is no configuration: write replicas like 2-1-1")
    return [int(count) for count in config.split("-")]


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

    With one bandwidth for all cells the geometric mean of simulated over published speedups is 1.
    It stands for all that the simulator does not know: copies between GPU and host, serialisation,
    other users of the network. A ValueError says what is possible where no bandwidth gives a
    speedup.
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
def roofline(setting: Setting) -> Profile:
    """Return what a minibatch costs on one worker, estimated for its GPU."""
    return study.published(setting.model, ROWS[setting.model], setting.machines().device)


@cache
def profile_of(setting: Setting) -> Profile:
    """Return the same, with the seconds that others published of that network and GPU, if any."""
    device, estimated = setting.machines().device, roofline(setting)
    known = (setting.model, device.name) in network_times()
    return as_published(estimated, setting.model, device) if known else estimated


@cache
def fitted(cells: tuple[Setting, ...], sums: AllReduce = "ring") -> float:
    """Return the bytes/s that fit the BSP cells of some rows of Table 1, summed in some way."""
    known = [(profile_of(row), row.machines(sums), printed(row, "bsp-speedup")) for row in cells]
    return effective([Cell(profile, on, float(speedup)) for profile, on, speedup in known])


def calibrated(
    setting: Setting, on: tuple[Setting, ...] | None = None, sums: AllReduce = "ring"
) -> Cluster:
    """Return a setting's machines with the bandwidth of its cluster's cells, or of those ``on``."""
    rows, machines = on or CALIBRATED_ON[setting.cluster], setting.machines(sums)
    origin = f"BSP of {' and '.join(row.name for row in rows)}, Table 1"
    return machines.calibrated(machines.levels[0].name, fitted(rows, sums), origin)
