"""The paper's schedules: their bubbles in slots, and GPT-3's on 96 A100s in seconds."""

from functools import cache
from math import inf

from experiments.megatron.gpts import GPT_3, S, block_flops
from pipekit import schedules
from pipekit.clusters import Cluster, Device, Level
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule
from pipekit.simulation import simulate
from pipekit.traces import Trace

P, T = 12, 8
"""Section 5.3.2's pipeline: 96 GPUs, 8 of each server for tensor parallelism."""

FLOPS = 140e12
"""A second and GPU (section 5.1)."""

CARD = 200e9 / 8
"""Bytes a second of an InfiniBand card, of which each GPU has one (section 5)."""

A100 = Device("A100", 80 * 2**30, {}, inf)


def pipeline(p: int, m: int, v: int = 1) -> Schedule:
    """Return a batch of the default schedule, or of the interleaved one with v stages a device."""
    if v == 1:
        return schedules.flush(p, m).take(1)
    return schedules.interleaved(p * v, m, workers=p).take(1)


def bubble(schedule: Schedule, backward: float = 2) -> float:
    """Return the idle time of a device over its ideal time; a forward takes one slot (2.2.1)."""
    trace = Trace.from_schedule(
        schedule, {Op.FORWARD: 1, Op.BACKWARD: backward, Op.UPDATE: 0}, batches=1
    )
    busy = (trace.frame["end_s"] - trace.frame["start_s"]).sum() / trace.workers
    return float(trace.makespan_s / busy - 1)


def messages(schedule: Schedule, device: int | None = None) -> int:
    """Return how many activations and gradients devices send in all, or a single one."""
    graph = schedule.dependencies
    return sum(
        target >= 0
        and graph.worker_of[number] != graph.worker_of[target]
        and device in (None, graph.worker_of[number])
        for number, target in enumerate(graph.target)
    )


@cache
def seconds(m: int, v: int, scatter_gather: bool = True, waits: bool = False) -> float:
    """Return how long GPT-3 takes for m microbatches of one sequence each (5.3.2, 5.7; simulated).

    Without the scatter/gather optimization each GPU sends the whole of what its stage gives, else
    its t-th part (4.1). ``waits``: a device computes nothing while it sends.
    """
    forward = GPT_3.layers * block_flops(GPT_3)[0] / (P * v * T * FLOPS)
    sent_bytes = 2 * S * GPT_3.hidden / (T if scatter_gather else 1)
    waiting = waits * sent_bytes / CARD
    costs = Profile.uniform(
        P * v, forward + waiting, 3 * forward + waiting, output_bytes=sent_bytes
    )
    links = None if waits else Cluster("A100s", A100, (Level("InfiniBand", P, CARD),))
    return simulate(pipeline(P, m, v), costs, cluster=links).makespan_s


def gain(m: int, v: int, **how: bool) -> float:
    """Return by how many percent interleaving raises GPT-3's throughput."""
    return 100 * (seconds(m, 1, **how) / seconds(m, v, **how) - 1)
