"""What each method costs for the same work: the numbers beside "when to use it".

One model on equal workers: with two stages a worker each pass is half as long and each activation
half as large; a chunk of a sequence has its share of a microbatch's.  A forward takes a slot and a
backward two; a transfer to the host or of weights takes no time, other work its slots.
"""

from collections.abc import Iterable
from itertools import chain

import pandas as pd

from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, check
from pipekit.schedules.methods.by_name import TABLES, batches_of, stages_a_worker
from pipekit.schedules.ops import PASSES
from pipekit.simulation import Costs, simulate
from pipekit.traces.record import tasks_of

WORKERS, MICROBATCHES, BATCHES = 4, 8, 4
MESSAGE_SLOTS = 0.25  # what an activation or a gradient takes on a link where links are slow

IDLE, START, KEPT, WEIGHTS = "idle, %", "idle in all, %", "activations", "weights"
SENT, SLOWER, OLD, EVERY = "messages", "by slow links, %", "updates behind", "per update"
MEANING = {
    IDLE: "of workers' time from their first update on, while batch follows batch",
    START: f"of all workers' time in {BATCHES} batches, the pipeline empty before and after",
    KEPT: "of how many microbatches the worker keeps that keeps most",
    WEIGHTS: "how many versions or copies the worker keeps that keeps most",
    SENT: "activations and gradients from worker to worker, a microbatch",
    SLOWER: f"how much longer it all takes if each message is {MESSAGE_SLOTS:g} slots on its "
    "sender's link (simulated)",
    OLD: "how many updates a forward's weights are behind those that its gradient is applied to",
    EVERY: "how many microbatches an update sums",
}
"""Of the columns."""


def table(names: Iterable[str] = TABLES) -> pd.DataFrame:
    """Return a row a method, by name, with the columns of :data:`MEANING`; exact but the last."""
    return pd.DataFrame({name: _row(name) for name in names}).T[list(MEANING)]


def made(name: str) -> Schedule:
    """Return a method's schedule for the same microbatches as any other's."""
    return batches_of(name, WORKERS * stages_a_worker(name), MICROBATCHES, BATCHES)


def _row(name: str) -> dict[str, float]:
    schedule, parts = made(name), stages_a_worker(name)
    layer = LayerProfile(
        "stage",
        forward_s=1 / parts,
        backward_s=2 / parts,
        backward_input_s=1 / parts,
        backward_weight_s=1 / parts,
        output_bytes=1,
    )
    computed = *PASSES, Op.UPDATE, Op.RECOMPUTE
    others = {op: op.slots * (not op.stream) for op in schedule.ops if op not in computed}
    given = Costs(Profile((layer,) * schedule.stages, input_bytes=1), ops=others)
    report, free = check(schedule), simulate(schedule, given)
    linked = simulate(schedule, given, cluster=flat(WORKERS, 1 / MESSAGE_SLOTS))
    assert linked.transfers is not None
    messages = len(linked.transfers) - len(tasks_of(linked.transfers))
    bubbles = 100 * free.bubbles().loc["all"]
    return {
        IDLE: bubbles["steady"],
        START: bubbles["makespan"],
        KEPT: max(report.peak_in_flight) / parts / schedule.chunks,
        WEIGHTS: max(report.peak_versions) / parts,
        SENT: messages * schedule.chunks / schedule.microbatches,
        SLOWER: 100 * (linked.makespan_s / free.makespan_s - 1),
        OLD: updates_behind(schedule),
        EVERY: len(schedule.updates[0][0]) / schedule.chunks,
    }


def updates_behind(schedule: Schedule) -> int:
    """Return how many updates a forward's weights are behind at its gradient's, at most."""
    return max(
        schedule.update_of[stage][microbatch] - 1 - version
        for op, stage, microbatch, version in chain(*schedule.workers)
        if op is Op.FORWARD
    )
