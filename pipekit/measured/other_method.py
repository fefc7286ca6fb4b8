"""What another named method would make of a recorded run's passes."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from pipekit.measured.recognition import Recognition
from pipekit.measured.what_if import WhatIf
from pipekit.names import METHODS
from pipekit.schedules import Op, Schedule, ScheduleError
from pipekit.schedules.clock import Walk, graph_needs
from pipekit.schedules.methods.by_name import METHODS as BY_NAME
from pipekit.traces import RECOMPUTE

Seconds = dict[tuple[str, int], float]
"""By op and stage."""


def fastest(what_if: WhatIf, recognition: Recognition) -> tuple[str, float]:
    """Return the method that saves most, and the seconds a step; "" and 0 if none does.

    It flushes, has the same stages on the same workers and the same kinds of passes, each of which
    takes its mean of the recording, as do messages.
    """
    if recognition.schedule is None or not recognition.schedule.is_closed:
        return "", 0.0
    passes, sent = _means(what_if)
    own = recognition.schedule.before(recognition.microbatches)
    recorded = best = _makespan(own, passes, sent)
    name = ""
    for other in METHODS:
        try:
            schedule = BY_NAME[other](recognition.stages, recognition.microbatches)
        except ScheduleError:  # not with these counts
            continue
        if not schedule.is_closed or schedule.stage_workers != own.stage_workers:
            continue
        taken = _makespan(schedule.before(recognition.microbatches), passes, sent)
        if taken < best:
            best, name = taken, other
    return name, recorded - best


def _means(what_if: WhatIf) -> tuple[Seconds, float]:
    """Return the mean seconds of passes, and of messages.

    A forward that is run again is part of the backward behind it.
    """
    rows = what_if.operations.table[what_if.passes]
    seconds = pd.Series(what_if.operations.seconds[what_if.passes], rows.index)
    again = rows["kind"] == RECOMPUTE
    kind = rows["kind"].where(~again, rows["kind"].shift(-1))
    total = seconds.groupby([kind, rows["stage"]]).sum()
    mean = total / (~again).groupby([kind, rows["stage"]]).sum()
    moves = what_if.operations.seconds[what_if.messages]
    sent = float(np.mean(moves)) if len(moves) else 0.0
    return {(kind, stage): float(value) for (kind, stage), value in mean.items()}, sent


def _makespan(schedule: Schedule, passes: Seconds, sent: float) -> float:
    """Return a step's seconds; infinite if the recording lacks a kind of pass."""
    graph = schedule.dependencies
    keys = [(task.op.name, task.stage) for task in graph.tasks if task.op is not Op.UPDATE]
    if not passes.keys() >= set(keys):
        return math.inf
    seconds = [passes.get((task.op.name, task.stage), 0.0) for task in graph.tasks]
    home = graph.worker_of
    needs = [
        tuple((n, sent if n >= 0 and home[n] != home[at] else 0.0) for n, _ in each)
        for at, each in enumerate(graph_needs(graph))
    ]
    lists = [range(*each) for each in pairwise(graph.first)]
    return max(Walk(lists, seconds, needs).run().free)
