"""Which microbatches are recomputed, and when (torchgpipe, section 2.1)."""

from collections.abc import Iterable
from itertools import product

from experiments.recorded.findings import Finding
from experiments.torchgpipe.as_drawn import as_drawn
from pipekit.clusters import Cluster
from pipekit.emulation import emulate
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.simulation import simulate
from pipekit.traces import RECOMPUTE, Trace


def recomputations(trace: Trace) -> int:
    """Return how many forwards ran again, on all stages together."""
    return int((trace.frame["op"] == RECOMPUTE).sum())


def counts(
    microbatches: Iterable[int], stages: Iterable[int], recompute: Recompute
) -> dict[tuple[int, int], int]:
    """Return the recomputations of a batch by (m, n), from the schedule with equal stages."""

    def trace(m: int, n: int) -> Trace:
        plan = Plan.by_hand([1] * n, recompute=recompute)
        return simulate(as_drawn(n, m), Profile.uniform(n), plan)

    return {mn: recomputations(trace(*mn)) for mn in product(microbatches, stages)}


def emulated(stages: int, microbatches: int, cluster: Cluster, output_bytes: float) -> Trace:
    """Return an emulated batch of equal stages of 20 and 40 ms, all but the last recomputed."""
    costs = Profile.uniform(stages, 0.020, 0.040, output_bytes=output_bytes)
    plan = Plan.by_hand([1] * stages, recompute="except_last")
    return emulate(as_drawn(stages, microbatches), costs, plan, cluster).trace


def overlaps(trace: Trace, copy_s: float) -> bool:
    """Return whether every recomputation of a batch begins before its gradient is there.

    On every stage but the last, for every microbatch that is recomputed: the start of F'(i, j) is
    before the end of B(i, j+1) and of the copy after it, which takes ``copy_s``.
    """
    events = trace.frame.set_index(["op", "stage", "microbatch"])
    again = events.loc[[RECOMPUTE], "start_s"].to_dict() if recomputations(trace) else {}
    end = events["end_s"].to_dict()
    hits = [
        start < end["BACKWARD", stage + 1, k] + copy_s
        for (_, stage, k), start in again.items()
        if stage < trace.workers - 1
    ]
    return bool(hits) and all(hits)


def findings(trace: Trace, copy_s: float, picture: str, most: int = 8) -> list[Finding]:
    """Return what section 2.1 claims of which microbatches are recomputed, and when.

    The trace is what :func:`emulated` returned for 4 stages and 4 microbatches, where a gradient's
    copy takes ``copy_s``; up to ``most`` microbatches and stages are counted.
    """
    sizes = range(1, most + 1)
    except_last, always = counts(sizes, sizes, "except_last"), counts(sizes, sizes, "always")
    last_is_not = all(count == (m - 1) * n for (m, n), count in except_last.items())
    last_is_not = last_is_not and recomputations(trace) == 3 * 4
    at_one, if_asked = sum(except_last[1, n] for n in sizes), all(always[1, n] == n for n in sizes)
    counted = f"m and n from 1 to {most} by the schedule; m = n = 4 also counted on the engine"
    waits = "4 equal stages, m = 4, all microbatches but the last on all stages but the last"
    early, last = overlaps(trace, copy_s), "torchgpipe-last-microbatch-not-recomputed"
    return [
        Finding.exact(last, last_is_not, counted, picture),
        Finding.exact("torchgpipe-m1-no-checkpoint", at_one),
        Finding.exact("torchgpipe-m1-bench-always", if_asked),
        Finding.emulated("torchgpipe-recompute-overlaps-wait", early, waits, picture),
    ]
