"""What is known of every task before any is timed: how long it computes, to whom it sends."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from pipekit.schedules import OPS, Op, Payload, Schedule
from pipekit.schedules.lowering.lower import batch_ends
from pipekit.schedules.lowering.steps import runs_again
from pipekit.schedules.lowering.weight_slots import weight_slots
from pipekit.schedules.ops import RECEIVERS, SENDERS
from pipekit.simulation.costs import StageCosts, skips_of, ties_of

_ACTIVATION, _GRADIENT = Payload.ACTIVATION.value, Payload.GRADIENT.value
WEIGHTS = "weights"
"""The purpose of what is sent of the weights' gradients."""


class Times(NamedTuple):
    """What happened when, in seconds.

    Attributes:
        starts: ``starts[w][i]``: when task ``i`` of worker ``w`` began to compute.
        ends: likewise, when it had computed.
        recomputed: likewise, when the recomputation before it began, or None.
        transfers: as in :attr:`pipekit.traces.Trace.transfers`.
    """

    starts: list[list[float]]
    ends: list[list[float]]
    recomputed: list[list[float | None]]
    transfers: pd.DataFrame


class Route(NamedTuple):
    """What the tasks of one stage send of one payload to those of another.

    Attributes:
        payload: an activation, or its gradient; that of weights that stages share goes with it.
        source: the stage that sends.
        destination: the stage that receives.
        size: bytes of a microbatch.
        purpose: as in :attr:`pipekit.traces.Trace.transfers`.
    """

    payload: Payload
    source: int
    destination: int
    size: float
    purpose: str


def seconds(schedule: Schedule, costs: Sequence[StageCosts]) -> list[float]:
    """Return what each task computes, by its number; a recomputed forward is not in it.

    An update that writes another weight slot than the newest version's copies the weights first.
    """
    graph = schedule.dependencies
    table = {op: [cost.seconds(op) for cost in costs] for op in Op}
    found = [table[op][stage] for op, stage, _, _ in graph.tasks]
    if any(cost.whole.copy_s for cost in costs):
        for first, tasks in zip(graph.first, schedule.workers, strict=False):
            newest: dict[int, int] = {}
            for position, slot in enumerate(weight_slots(tasks).slots):
                op, stage, _, _ = tasks[position]
                if OPS[op].is_pass:
                    continue
                if slot != newest.get(stage, 0):
                    found[first + position] += costs[stage].whole.copy_s
                newest[stage] = slot
    return found


def recomputed(schedule: Schedule, costs: Sequence[StageCosts]) -> bytearray:
    """Return for each task, by its number, whether its forward runs again before it."""
    graph = schedule.dependencies
    found = bytearray(len(graph.tasks))
    if all(cost.recompute == "never" for cost in costs):
        return found
    for first, tasks in zip(graph.first, schedule.workers, strict=False):
        last_of_batches = batch_ends(tasks, schedule)
        for number, (op, stage, microbatch, _) in enumerate(tasks, first):
            if OPS[op].own is Op.FORWARD:
                ends_batch = (stage, microbatch) in last_of_batches
                found[number] = runs_again(costs[stage].recompute, ends_batch)
    return found


def routes(schedule: Schedule, costs: Sequence[StageCosts]) -> list[Route]:
    """Return what stages send to one another: to neighbours, over skip connections, and for ties.

    Of weights that stages share, each one with a copy sends a microbatch's gradient to the one
    before (:mod:`pipekit.partition.ties`).
    """
    pairs = [(stage, stage + 1, costs[stage].whole.output_bytes) for stage in range(len(costs) - 1)]
    pairs += [(skip.source, skip.destination, skip.bytes) for skip in skips_of(costs)]
    found = []
    for early, late, size in pairs:
        found.append(Route(Payload.ACTIVATION, early, late, size, _ACTIVATION))
        if schedule.trains:
            found.append(Route(Payload.GRADIENT, late, early, size, _GRADIENT))
    for tie in ties_of(costs) if schedule.trains else ():
        for early, late in pairwise(tie.layers):
            found.append(Route(Payload.GRADIENT, late, early, tie.bytes, WEIGHTS))
    return found


def routes_of_tasks(
    schedule: Schedule, costs: Sequence[StageCosts]
) -> tuple[dict[Op, list[list[Route]]], dict[Op, list[int]]]:
    """Return, by op and stage, what a task sends, and how many messages it receives."""
    sent: dict[Op, list[list[Route]]] = {op: [[] for _ in costs] for op in Op}
    received = {op: [0] * len(costs) for op in Op}
    for route in routes(schedule, costs):
        for op in SENDERS[route.payload]:
            sent[op][route.source].append(route)
        for op in RECEIVERS[route.payload]:
            received[op][route.destination] += 1
    return sent, received
