"""Bytes over time on every worker, from when its tasks run."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import OPS, Op, Schedule
from pipekit.schedules.dependencies import Columns
from pipekit.schedules.lowering.weight_slots import slots_of
from pipekit.schedules.ops import (
    GRADIENTS,
    OFFLOADED,
    PASSES,
    PLACES,
    SENT_GRADIENTS,
    SENT_WEIGHTS,
    WEIGHTS,
)
from pipekit.schedules.transfers import GATHER, SUM
from pipekit.simulation.costs import Shards, StageCosts
from pipekit.simulation.loads import Numbers, Times
from pipekit.staleness.mitigation import Mitigation
from pipekit.traces.memory import PARTS, Memory

_WEIGHTS, _GRADIENTS, _OPTIMIZER, _ACTIVATIONS, _RECOMPUTE = range(len(PARTS))
_PART_OF = {
    WEIGHTS: _WEIGHTS,
    SENT_WEIGHTS: _WEIGHTS,
    GRADIENTS: _GRADIENTS,
    SENT_GRADIENTS: _GRADIENTS,
    OFFLOADED: _ACTIVATIONS,
}
"""Of items that other ops than passes move."""
_EACH = 5
"""A task has fewer changes than this."""
_BEFORE, _AFTER = -1, np.iinfo(np.int64).max
"""Of changes at one time: those before the ones of all tasks, and behind them."""


_Size = Callable[[Op, StageCosts], float]


class _Changes(NamedTuple):
    """An entry each."""

    worker: Numbers  # whose memory changes
    order: Numbers  # of two changes at one time the one with less comes first
    part: Numbers  # a place in PARTS
    when: NDArray[np.float64]  # in seconds
    bytes: NDArray[np.float64]  # more


def memory(
    schedule: Schedule,
    costs: Sequence[StageCosts],
    times: Times,
    optimizer_states: float,
    mitigation: Mitigation | None = None,
    shards: Shards | None = None,
) -> Memory:
    """Return what lies in memory when, as the engine keeps it.

    All weight slots of a run are there from its start, the gradients of a batch from the first pass
    that adds one to its update, the optimizer's state from the first update on.  A microbatch keeps
    what the stage received, what its layers save, and what it sends, from the forward's start to
    the backward's end; of a backward in two parts the first one's end frees what only it needs
    (``input_only_bytes``).  If the microbatch is recomputed, it keeps only what was received until
    its second forward.  Skips from and to other stages take memory at both ends and nowhere
    between.  In the first pass that adds them, gradients come layer by layer as activations go; all
    of it shows the height in between.  What has arrived and waits for its forward, targets and what
    the loss saves, gradients of activations, and what operators use for a moment are not counted.
    What a mitigation of stale weights keeps counts with the optimizer's state, beside its slots.
    """
    rule = mitigation or Mitigation()
    task = schedule.dependencies.columns
    share = 1 / shards.workers if shards else 1.0
    found = [
        _constant(schedule, costs, rule, share),
        *(_changes(schedule, task, costs, times, share) if schedule.trains else ()),
        *_transferred(schedule, costs, times, share),
        _optimizer(task, costs, times, optimizer_states + rule.tensors, share),
    ]
    changes = _Changes(*map(np.concatenate, zip(*found, strict=True)))
    sort = np.lexsort((changes.order, changes.when, changes.worker))
    worker, when = changes.worker[sort], changes.when[sort]
    held = np.zeros((len(sort), len(PARTS)))
    held[np.arange(len(sort)), changes.part[sort]] = changes.bytes[sort]
    for stop, start in zip(np.append(_starts(worker)[1:], len(sort)), _starts(worker), strict=True):
        held[start:stop] = held[start:stop].cumsum(axis=0)
    # Of several changes at one time only the last shows; what ends goes before what begins.
    last = np.append((worker[1:] != worker[:-1]) | (when[1:] != when[:-1]), True)
    frame = pd.DataFrame(held[last], columns=PARTS)
    frame.insert(0, "time_s", when[last])
    frame.insert(0, "worker", worker[last])
    return Memory(frame, "simulated")


def _starts(worker: Numbers) -> NDArray[np.intp]:
    """Return where each worker's rows begin; they stand together."""
    return np.flatnonzero(np.append(True, worker[1:] != worker[:-1]))


def _sharing(task: Columns, op: Op) -> NDArray[np.bool_]:
    """Return for each task whether its worker has any of an op for its stage."""
    whose = task.worker * (1 + task.stage.max(initial=0)) + task.stage
    return np.isin(whose, whose[task.op == PLACES[op]])


def _constant(
    schedule: Schedule, costs: Sequence[StageCosts], rule: Mitigation, share: float
) -> _Changes:
    rows, task = [], schedule.dependencies.columns
    gathers = np.zeros((schedule.worker_count, schedule.stages), np.bool_)
    gathers[task.worker, task.stage] = _sharing(task, GATHER)
    slots = np.zeros((schedule.worker_count, schedule.stages), np.int64)
    each = np.concatenate([each.slots for each in slots_of(schedule)]).astype(np.int64)
    np.maximum.at(slots, (task.worker, task.stage), each + 1)
    slots[_borrowed(schedule)] = 0
    for worker, stage in np.argwhere(slots).tolist():
        count = rule.slots(int(slots[worker, stage]), schedule.stashing)
        weights = costs[stage].whole.parameter_bytes * (share if gathers[worker, stage] else 1)
        size = count * weights + costs[stage].whole.buffer_bytes
        rows.append((worker, _BEFORE, _WEIGHTS, 0.0, size))
    whose, order, part, when, sizes = map(np.array, zip(*rows, strict=True))
    return _Changes(whose, order, part, when, sizes.astype(float))


def _borrowed(schedule: Schedule) -> NDArray[np.bool_]:
    """Return for each worker and stage whether it has only copies of others' weights."""
    stages = range(schedule.stages)
    return np.array([[stage in each for stage in stages] for each in schedule.borrowed], np.bool_)


def _optimizer(
    task: Columns, costs: Sequence[StageCosts], times: Times, states: float, share: float
) -> _Changes:
    sizes = states * np.array([float(cost.whole.parameter_bytes) for cost in costs])
    first = np.flatnonzero(~task.whose(lambda op: op.is_pass) & (task.version == 1))
    part = np.where(_sharing(task, SUM), share, 1.0)[first]
    order = np.full(len(first), _AFTER)
    return _changed(task, first, order, _OPTIMIZER, times.starts, part * sizes[task.stage[first]])


def _changed(
    task: Columns,
    tasks: Numbers,
    order: Numbers,
    part: int,
    when: NDArray[np.float64],
    sizes: NDArray[np.float64],
) -> _Changes:
    """Return a change on the worker of each of some tasks."""
    return _Changes(task.worker[tasks], order, np.full(len(tasks), part), when[tasks], sizes)


def _changes(
    schedule: Schedule, task: Columns, costs: Sequence[StageCosts], times: Times, share: float
) -> Iterator[_Changes]:
    """Yield what activations, recomputation and gradients add and free."""
    starts, ends, again = times.starts, times.ends, times.again

    def change(
        which: NDArray[np.bool_], place: int, part: int, when: NDArray[np.float64], size: _Size
    ) -> _Changes:
        """Return one of some tasks' changes, each task's at this place among its own."""
        tasks = np.flatnonzero(which)
        sizes = np.zeros((len(OPS), len(costs)))
        for op in schedule.dependencies.ops:
            sizes[PLACES[op]] = [size(op, cost) for cost in costs]
        each = sizes[task.op[tasks], task.stage[tasks]]
        return _changed(task, tasks, _EACH * tasks + place, part, when, each)

    is_update = ~task.whose(lambda op: op.is_pass)
    is_backward = task.whose(lambda op: op.is_backward)
    at_a_place = task.op == PLACES[Op.RECOMPUTE]
    again = np.where(at_a_place, starts, again)
    begins_again = ~np.isnan(again)
    runs_again = np.zeros((schedule.stages, schedule.microbatches), np.bool_)
    runs_again[task.stage[begins_again], task.microbatch[begins_again]] = True
    keeps = ~is_update & ~at_a_place
    recomputed = keeps & runs_again[task.stage, task.microbatch]
    when = np.where(task.whose(_frees), ends, starts)
    yield change(begins_again, 0, _RECOMPUTE, again, lambda op, cost: cost.kept_bytes)
    yield change(recomputed & is_backward, 1, _RECOMPUTE, ends, _kept)
    yield change(recomputed, 2, _ACTIVATIONS, when, _received)
    yield change(keeps & ~recomputed, 2, _ACTIVATIONS, when, _received_and_kept)
    update = np.array(schedule.update_of)[task.stage, task.microbatch]
    place = task.worker * schedule.stages + task.stage
    summed, sent = place * (1 + update.max()) + update, _sent_before(task, place)
    summed = summed * (1 + sent.max(initial=0)) + sent
    adding = np.flatnonzero(task.whose(lambda op: op.adds_gradient or _receives_gradients(op)))
    sums, places = np.unique(summed[adding], return_index=True)
    first = np.zeros(len(summed), np.bool_)
    first[adding[places]] = True
    yield change(first, 3, _GRADIENTS, starts, lambda op, cost: cost.gradients_at_height(op))
    yield change(first, 4, _GRADIENTS, ends, _rest_of_gradients)
    beside = task.whose(_receives_gradients) & ~first  # a sum that is added to the worker's own
    yield change(beside, 3, _GRADIENTS, starts, lambda op, cost: cost.whole.parameter_bytes)
    yield change(beside, 4, _GRADIENTS, ends, partial(_freed, 1.0))
    elsewhere = is_update & ~np.isin(summed, sums)  # all its gradients are other workers'
    yield change(elsewhere, 0, _GRADIENTS, starts, lambda op, cost: cost.whole.parameter_bytes)
    is_left = _sharing(task, SUM)  # a share of them, since they are summed before
    for which, part in (is_update & ~is_left, 1.0), (is_update & is_left, share):
        yield change(which, 1, _GRADIENTS, ends, partial(_freed, part))


def _transferred(
    schedule: Schedule, costs: Sequence[StageCosts], times: Times, kept: float
) -> Iterator[_Changes]:
    """Yield what lies with a partner, and what moving weights and gradients changes."""
    task, borrowed = schedule.dependencies.columns, _borrowed(schedule)
    for place in np.unique(task.op).tolist():
        op, tasks = OPS[place], np.flatnonzero(task.op == place)
        changes = [(item, 1, times.starts) for item in op.gives]
        changes += [(item, -1, times.ends) for item in op.takes]
        for item, sign, when in changes if op not in PASSES else ():
            if item not in _PART_OF or (item.is_away and op.peer is None):
                continue
            if item is GRADIENTS and sign > 0:
                continue  # as passes that add gradients
            worker, stage = task.worker[tasks], task.stage[tasks]
            is_whole = borrowed[worker, stage] | (op.peer is not None)
            sizes = sign * np.array([cost.item_bytes(item) for cost in costs])
            each = sizes[stage] * np.where(is_whole, 1, 1 - kept)
            order = _EACH * tasks + (sign > 0)
            made = _changed(task, tasks, order, _PART_OF[item], when, each)
            at_peer = item.is_away or (item.is_sent and sign < 0)
            yield made._replace(worker=np.full(len(tasks), op.peer)) if at_peer else made


def _sent_before(task: Columns, place: Numbers) -> Numbers:
    """Return for each task how often its worker has sent away all gradients of its stage."""
    sends, found = task.whose(lambda op: SENT_GRADIENTS in op.gives), np.zeros_like(place)
    for each in np.unique(place[sends]).tolist():
        found[place == each] = sends[place == each].cumsum()
    return found


def _receives_gradients(op: Op) -> bool:
    return SENT_GRADIENTS in op.takes


def _freed(part: float, op: Op, cost: StageCosts) -> float:
    return -part * cost.whole.parameter_bytes


def _frees(op: Op) -> bool:
    """Return whether an op frees what a microbatch keeps on its worker."""
    return any(item.each == "microbatch" and not item.is_away for item in op.takes)


def _kept(op: Op, cost: StageCosts) -> float:
    return op.activation_bytes(cost.kept_bytes, cost.whole.input_only_bytes)


def _received(op: Op, cost: StageCosts) -> float:
    return op.activation_bytes(cost.received_bytes, 0)


def _received_and_kept(op: Op, cost: StageCosts) -> float:
    all_bytes = cost.received_bytes + cost.kept_bytes
    return op.activation_bytes(all_bytes, cost.whole.input_only_bytes)


def _rest_of_gradients(op: Op, cost: StageCosts) -> float:
    return cost.whole.parameter_bytes - cost.gradients_at_height(op)
