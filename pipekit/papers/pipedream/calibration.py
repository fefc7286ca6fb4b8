"""Steady-state speeds of a plan, and the bandwidth that explains a published one.

The bandwidths that PipeDream prints do not explain its Table 1.  The *effective* bandwidth does for
the cells that it is fitted on: with it, simulated data parallelism is as fast as the paper's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from scipy.optimize import brentq

from pipekit.clusters import Cluster, pipedream_a, pipedream_b
from pipekit.ledger import claims
from pipekit.models.published import PUBLISHED
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, optimal_in_flight, pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace

Method = Callable[[Plan, int], Schedule]
"""(plan, minibatches) to a schedule."""

SIMULATED = 200
"""Minibatches to be simulated in steady state: waits in a pipeline may repeat only after many."""

BANDWIDTHS = 1e6, 1e12
"""Bytes/s between which an effective bandwidth is looked for."""


MINIBATCH = {"vgg16": 32, "inception-v3": 32, "s2vt": 80, "resnet50": 32, "alexnet": 32}
"""Rows a worker (section 5.1); the paper prints none for ResNet-50 and AlexNet."""

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

    def machines(self) -> Cluster:
        """Return the workers, with the bandwidth that the paper prints."""
        return _CLUSTERS[self.cluster](self.workers)


TABLE1 = (
    Setting("vgg16", 4, "A"),
    Setting("vgg16", 8, "A"),
    Setting("vgg16", 16, "A"),
    Setting("vgg16", 8, "B"),
    Setting("inception-v3", 8, "A"),
    Setting("inception-v3", 8, "B"),
    Setting("s2vt", 4, "A"),
)
"""The rows of Table 1."""

THROUGHPUT = (Setting("resnet50", 8, "B"), Setting("alexnet", 8, "B"))
"""What section 5.2 reports without end-to-end results."""

CALIBRATED_ON = {
    ("vgg16", "A"): TABLE1[0],
    ("vgg16", "B"): TABLE1[3],
    ("inception-v3", "A"): TABLE1[0],
    ("inception-v3", "B"): TABLE1[5],
    ("s2vt", "A"): TABLE1[6],
    ("resnet50", "B"): TABLE1[3],
    ("alexnet", "B"): TABLE1[3],
}
"""The row whose BSP cell gives the bandwidth for a network on a cluster; where Table 1 has none
that is free for it, VGG16's on the same cluster."""


class Window(NamedTuple):
    """Which minibatches of a run are its steady state.

    Attributes:
        warmup: minibatches that fill the pipeline and let it settle.
        counted: those that are timed.
        drain: those after them, so that the timed ones have company to their end.
    """

    warmup: int
    counted: int
    drain: int

    @property
    def minibatches(self) -> int:
        """Minibatches of the whole run."""
        return sum(self)


def window(replicas: Sequence[int], at_least: int, margin: int = 1) -> Window:
    """Return how long a run of PipeDream's schedule must be.

    The stages' rounds meet again after as many minibatches as the least common multiple of their
    replicas; all parts of the run are multiples of it, so that no round is cut.

    Args:
        replicas: workers of each stage.
        at_least: minibatches to be timed.
        margin: by how much to lengthen warm-up and drain.
    """
    period = math.lcm(*replicas)
    in_flight = margin * optimal_in_flight(replicas)[0] * replicas[0]
    return Window(*(period * math.ceil(n / period) for n in (2 * in_flight, at_least, in_flight)))


def steady_seconds(trace: Trace, counted: Window) -> float:
    """Return the seconds a minibatch in steady state, by when minibatches leave the first stage."""
    frame = trace.frame
    left = sorted(frame.loc[(frame["stage"] == 0) & (frame["op"] == "BACKWARD"), "end_s"])
    first = counted.warmup - 1
    return float(left[first + counted.counted] - left[first]) / counted.counted


def pipelined(plan: Plan, minibatches: int) -> Schedule:
    """Return PipeDream's schedule for a plan."""
    return pipedream(plan.replicas, minibatches)


def simulated_seconds(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None,
    method: Method = pipelined,
    minibatches: int = SIMULATED,
) -> float:
    """Return the simulated seconds a minibatch in steady state.

    Args:
        profile: costs of a minibatch on one worker.
        plan: what to run.
        cluster: the links; None: they cost nothing.
        method: makes the schedule.
        minibatches: to be timed, at least.
    """
    counted = window(plan.replicas, minibatches, margin=3)
    table = method(plan, counted.minibatches)
    return steady_seconds(simulate(table, profile, plan, cluster), counted)


def compute_seconds(profile: Profile) -> float:
    """Return the seconds a minibatch on one machine, which has nothing to wait for."""
    return sum(layer.forward_s + layer.backward_s + layer.update_s for layer in profile.layers)


def data_parallel(profile: Profile, workers: int) -> Plan:
    """Return data parallelism as a plan: one stage on all workers (PipeDream, section 4)."""
    return Plan.by_hand([len(profile)], rows=profile.rows, replicas=[workers])


def bsp_speedup(profile: Profile, cluster: Cluster) -> float:
    """Return the simulated speedup of data parallelism on all of a cluster over one machine."""
    plan = data_parallel(profile, cluster.workers)
    one_round = simulated_seconds(profile, plan, cluster, minibatches=cluster.workers)
    return compute_seconds(profile) / one_round


def effective(profile: Profile, cluster: Cluster, speedup: float, origin: str) -> Cluster:
    """Return the cluster with the bandwidth at which simulated data parallelism is as published.

    What is fitted is one number for all that the simulator does not know: parameter servers in
    place of a ring, copies between GPU and host, serialisation, other users of the network.

    Args:
        profile: costs of a minibatch on one worker.
        cluster: of as many workers as the published cell, with one level of links.
        speedup: of data parallelism over one machine, as published.
        origin: the cell, for the record.

    Raises:
        ValueError: no bandwidth gives this speedup; the message says which are possible.
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


def printed(setting: Setting, column: str) -> str:
    """Return what Table 1 prints: column "bsp-speedup", "config", "pp-speedup", "pp-over-bsp" or
    "comm-reduction"."""
    return claims.load()[f"pipedream-table1-{setting.name}-{column}"].value


@cache
def profile_of(setting: Setting, files: str = "") -> Profile:
    """Return what a minibatch costs on one worker.

    Args:
        setting: of which the network, and the device of its cluster, are used.
        files: a profile's path with ``{model}`` in it, say of measured ones; if empty, it is
            reckoned for the device (:meth:`pipekit.Profile.analytic`).
    """
    if files:
        return Profile.load(files.format(model=setting.model))
    network, device = PUBLISHED[setting.model], setting.machines().device
    with torch.device("meta"):
        sample = network.sample(MINIBATCH[setting.model])
    return Profile.analytic(network.build(device="meta"), sample, device)


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
        fitted,
        levels=tuple(replace(level, width=setting.workers) for level in fitted.levels),
    )
