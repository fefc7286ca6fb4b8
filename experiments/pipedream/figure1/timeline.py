"""A timeline of data parallelism that stalls for its gradients (PipeDream, Figure 2)."""

import math
import statistics
from dataclasses import dataclass

from experiments.pipedream.table1.speeds import data_parallel
from experiments.recorded.findings import Finding
from experiments.study.rounds import unless_parted
from pipekit.clusters import Cluster
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.emulation import emulate
from pipekit.profiling import Profile
from pipekit.schedules import pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace


@dataclass(frozen=True)
class Timeline:
    """Figure 2: a timeline of data parallelism, really run with modelled compute and links.

    ``order`` are worker 0's forwards, backwards and updates, say "FBUFBU"; ``stall_s`` is the
    median time from the end of a backward to the update, which waits for the gradients of all,
    ``expected_s`` the same by :func:`exposed_seconds`, and ``exchange_s`` that of a whole exchange;
    ``simulated_s`` is what the whole run takes without a machine's own time.
    """

    trace: Trace
    order: str
    stall_s: float
    expected_s: float
    exchange_s: float
    simulated_s: float

    def holds(self, tolerance: float) -> bool:
        """Return whether the workers stall between B_n and F_n+1 for what is not overlapped."""
        return (
            self.order == "FBU" * (len(self.order) // 3)
            and math.isclose(self.stall_s, self.expected_s, rel_tol=tolerance)
            and 0 < self.stall_s < self.exchange_s
        )

    def finding(self, tolerance: float) -> Finding:
        """Return whether :meth:`holds`, with the seconds in question."""
        note = (
            f"stall {self.stall_s * 1e3:.0f} ms, exchange less overlap "
            f"{self.expected_s * 1e3:.0f} ms, the whole exchange {self.exchange_s * 1e3:.0f} ms; "
            f"within {tolerance:.0%} asked for"
        )
        holds = self.holds(tolerance)
        found = Finding.emulated("pipedream-fig2-bsp-timeline", holds, note, "figure2.svg")
        return unless_parted(found, self.trace.makespan_s, self.simulated_s)


def timeline(costs: Profile, cluster: Cluster, rounds: int) -> Timeline:
    """Emulate so many steps of data parallelism on all workers of a cluster."""
    workers, bandwidth = cluster.workers, cluster.levels[-1].used_bandwidth
    table = pipedream([workers]).take(rounds * workers)
    plan = data_parallel(costs, workers)
    trace = emulate(table, costs, plan, cluster).trace
    own = trace.frame[trace.frame["worker"] == 0]
    backwards = own[own["op"] == "BACKWARD"]["end_s"]
    stalls = [
        end - before for before, end in zip(backwards, trace.ends("UPDATE", worker=0), strict=True)
    ]
    return Timeline(
        trace=trace,
        order="".join(op[0] for op in own["op"]),
        stall_s=statistics.median(stalls),
        expected_s=exposed_seconds(costs, workers, bandwidth),
        exchange_s=all_reduce_bytes(costs.parameter_bytes, workers) / bandwidth,
        simulated_s=simulate(table, costs, plan, cluster).makespan_s,
    )


def exposed_seconds(costs: Profile, workers: int, bandwidth: float) -> float:
    """Return the part of the wait-free exchange that is left when the backward has ended.

    Layers' gradients take turns on the link, in the order of the backward (section 2.1), at
    ``bandwidth`` bytes/s in each direction.
    """
    computed = sent = 0.0
    for layer in reversed(costs.layers):
        computed += layer.backward_s
        if layer.parameter_bytes:
            size = all_reduce_bytes(layer.parameter_bytes, workers)
            sent = max(sent, computed) + size / bandwidth
    return max(0.0, sent - computed)
