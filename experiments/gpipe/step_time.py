"""Where the time of a step goes, and how recomputing early shrinks the bubble (GPipe, 3.3, 4.2)."""

from itertools import pairwise

import pandas as pd

from experiments.gpipe import bubble
from experiments.study.costs import recomputed_late, with_costs
from pipekit.profiling import Profile
from pipekit.traces import Trace
from pipekit.traces.breakdown import ALL


def late_recomputation(profile: Profile) -> Profile:
    """Return costs whose backwards begin with the recomputation, once the gradient is there.

    Updates take no time, as in the theory of the bubble.
    """
    return with_costs(recomputed_late(profile), update_s=lambda _: 0.0)


def read_off(trace: Trace) -> pd.Series:
    """Return where a minibatch's time goes, in percent, read off as Figure 4's caption says.

    Imbalance is "the waiting time for the next micro-batch": idle time within a worker's forwards,
    or within its backwards.  Bubble is the "idle time between forward and backward passes", those
    of the steps before and after included.  So what the others wait for a slow stage between its
    forwards and its backwards is bubble; :meth:`Trace.breakdown`, whose categories these are, calls
    it imbalance.  Both find the same computation; communication and other are idle time here.
    """
    imbalance = bubble = 0.0
    for _, own in trace.frame.groupby("worker"):
        forwards = own[own["op"] == "FORWARD"]
        turn = own.loc[own["op"] == "BACKWARD", "start_s"].min()
        early = own[(own["op"] == "RECOMPUTE") & (own["start_s"] < turn)]  # within the bubble
        backwards = own[own["op"].isin(["RECOMPUTE", "BACKWARD"]) & (own["start_s"] >= turn)]
        phases = sum(
            float(each["end_s"].max() - each["start_s"].min()) for each in (forwards, backwards)
        )
        imbalance += phases - _busy(forwards) - _busy(backwards)
        bubble += trace.makespan_s - phases - _busy(early) - _busy(own[own["op"] == "UPDATE"])
    shares = trace.breakdown().loc[ALL].copy()
    shares["imbalance"] = 100 * imbalance / (trace.workers * trace.makespan_s)
    shares["bubble"] = 100 * bubble / (trace.workers * trace.makespan_s)
    shares["communication"] = shares["other"] = 0.0
    return shares


def bubble_over_theory(trace: Trace, stages: int, microbatches: int) -> float:
    """Return the bubble that is read off a step over (K-1)/(T+K-1), of which section 4.2 speaks."""
    return float(read_off(trace)["bubble"]) / 100 / bubble(stages, microbatches)


def recomputes_early(trace: Trace) -> bool:
    """Return whether each stage but the last recomputes before its first gradient is computed."""
    firsts = trace.frame.groupby(["stage", "op"]).first()
    return all(
        firsts["start_s"][stage, "RECOMPUTE"] < firsts["end_s"][after, "BACKWARD"]
        for stage, after in pairwise(sorted(trace.frame["stage"].unique()))
    )


def _busy(events: pd.DataFrame) -> float:
    return float((events["end_s"] - events["start_s"]).sum())
