"""Whether ASP has no communication overhead (PipeDream, section 5.2)."""

from experiments.pipedream.convergence.time_to_accuracy import FIGURES, machines
from experiments.pipedream.table1.rows import Setting
from experiments.pipedream.table1.speeds import compute_seconds, data_parallel
from experiments.recorded.findings import Finding
from experiments.study.costs import emulate_at_pace
from experiments.study.traces import mean_interval
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.schedules import asp

SETTING = FIGURES["12"][0].setting
"""VGG16 on four machines of Cluster-A."""


def asp_stall(setting: Setting, delay: int, minibatches: int, faster: float) -> float:
    """Return the part (0 to 1) of their time that ASP's workers wait for weights, emulated.

    Every gradient goes to every worker, by the same ring as BSP's sums, and may come ``delay``
    updates late; in the emulation time runs ``faster``.
    """
    (costs, cluster), workers = machines(setting), setting.workers
    fill, drain = 2 * (delay + 1), delay + 1  # minibatches: as many are in flight as drain
    table = asp(workers, delay).take(fill + minibatches + drain)
    plan = data_parallel(costs, workers)
    run = emulate_at_pace(table, costs, plan, cluster, faster)
    steady_s = mean_interval(run.trace.ends("BACKWARD", stage=0), fill - 1, fill - 1 + minibatches)
    return 1 - compute_seconds(costs) / workers / steady_s


def gradient_seconds(setting: Setting) -> tuple[float, float]:
    """Return the seconds that a minibatch's gradient is on a ring's links, and is computed."""
    costs, cluster = machines(setting)
    (level,) = cluster.levels
    sent = all_reduce_bytes(costs.parameter_bytes, setting.workers)
    return sent / level.used_bandwidth, compute_seconds(costs)


def stalls(minibatches: int, faster: float) -> dict[int, float]:
    """Return the stall of VGG16 on four machines by delay; see :func:`asp_stall`."""
    return {delay: asp_stall(SETTING, delay, minibatches, faster) for delay in (3, 7)}


def finding(stall: dict[int, float], faster: float) -> Finding:
    """Return whether ASP has no communication overhead, by what :func:`stalls` returned."""
    transfer, compute = gradient_seconds(SETTING)
    note = (
        f"VGG16 on 4A, bandwidth of Table 1's calibration, time {faster:g} times faster; a "
        f"gradient takes {transfer:.2f} s to reach all workers and {compute:.2f} s to compute, so "
        f"the links are the bottleneck at any fixed delay; through a parameter server a worker "
        f"would still send and receive as much as in BSP a minibatch, whose transfer Table 1 "
        f"itself shows to take longer than computing; only unbounded staleness hides it"
    )
    return Finding.emulated("pipedream-sec52-asp-no-comm", stall[7], note)
