"""Bytes over time on every worker, from when its tasks run."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import OPS, Op, Schedule
from pipekit.schedules.lowering.weight_slots import slots_of
from pipekit.schedules.ops import (
    ACTIVATIONS,
    GRADIENTS,
    OFFLOADED,
    PASSES,
    PLACES,
    REST,
    SENT_GRADIENTS,
    SENT_WEIGHTS,
    SUMS,
    WEIGHTS,
)
from pipekit.schedules.transfers import GATHER, SUM
from pipekit.simulation.costs import Shards, StageCosts
from pipekit.simulation.loads import Numbers, Seconds, Times
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
_COUNTED = {ACTIVATIONS, REST, SUMS}
"""Those that passes give and take, and those that have no bytes of their own."""
_EACH = 5
"""A task has fewer changes than this."""

_Mask = NDArray[np.bool_]
_Bytes = NDArray[np.float64]


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
    changes = _Changes(schedule, costs, times, 1 / shards.workers if shards else 1.0)
    changes.add_constant(rule)
    if schedule.trains:
        changes.add_activations()
        changes.add_gradients()
    changes.add_items()
    changes.add_optimizer(optimizer_states + rule.tensors)
    return changes.memory()


class _Changes:
    """What changes in workers' memory; a group of sharded workers keeps a ``share`` each."""

    def __init__(
        self, schedule: Schedule, costs: Sequence[StageCosts], times: Times, share: float
    ) -> None:
        self._schedule, self._costs, self._times, self._share = schedule, costs, times, share
        self._task = schedule.dependencies.columns
        self._weights = self._sized(lambda op, cost: cost.whole.parameter_bytes)
        stages = range(schedule.stages)
        self._borrowed = np.array([[s in each for s in stages] for each in schedule.borrowed], bool)
        # For each change its worker, its order at one time, its place in PARTS, when, and bytes.
        self._rows: list[tuple[Numbers, Numbers, Numbers, Seconds, _Bytes]] = []

    def _sized(self, size: Callable[[Op, StageCosts], float]) -> _Bytes:
        sizes = np.zeros((len(OPS), len(self._costs)))
        for op in self._schedule.dependencies.ops:
            sizes[PLACES[op]] = [size(op, cost) for cost in self._costs]
        return sizes[self._task.op, self._task.stage]

    def _sharing(self, op: Op) -> _Mask:
        """Return for each task whether its worker has any of an op for its stage."""
        whose = self._task.worker * (1 + self._task.stage.max(initial=0)) + self._task.stage
        return np.isin(whose, whose[self._task.op == PLACES[op]])

    def _add(
        self,
        which: _Mask,
        place: int,
        part: int,
        when: Seconds,
        sizes: _Bytes,
    ) -> None:
        """Add a change of some tasks, each at this place among its own, on its worker."""
        tasks = np.flatnonzero(which)
        worker, parts = self._task.worker[tasks], np.full(len(tasks), part)
        self._rows.append((worker, _EACH * tasks + place, parts, when[tasks], sizes[tasks]))

    def memory(self) -> Memory:
        worker, order, part, when, sizes = map(np.concatenate, zip(*self._rows, strict=True))
        sort = np.lexsort((order, when, worker))
        worker, when = worker[sort], when[sort]
        held = np.zeros((len(sort), len(PARTS)))
        held[np.arange(len(sort)), part[sort]] = sizes[sort]
        begins = np.flatnonzero(np.append(True, worker[1:] != worker[:-1]))
        for start, stop in zip(begins, np.append(begins[1:], len(sort)), strict=True):
            held[start:stop] = held[start:stop].cumsum(axis=0)
        # Of several changes at one time only the last shows; what ends goes before what begins.
        last = np.append((worker[1:] != worker[:-1]) | (when[1:] != when[:-1]), True)
        frame = pd.DataFrame(held[last], columns=PARTS)
        frame.insert(0, "time_s", when[last])
        frame.insert(0, "worker", worker[last])
        return Memory(frame, "simulated")

    def add_constant(self, rule: Mitigation) -> None:
        schedule, task, sizes = self._schedule, self._task, list[float]()
        gathers, slots = (np.zeros(self._borrowed.shape, kind) for kind in (np.bool_, np.int64))
        gathers[task.worker, task.stage] = self._sharing(GATHER)
        each = np.concatenate([each.slots for each in slots_of(schedule)]).astype(np.int64)
        np.maximum.at(slots, (task.worker, task.stage), each + 1)
        slots[self._borrowed] = 0
        there = np.argwhere(slots)
        for worker, stage in there.tolist():
            whole = self._costs[stage].whole
            weights = whole.parameter_bytes * (self._share if gathers[worker, stage] else 1)
            count = rule.slots(int(slots[worker, stage]), schedule.stashing)
            sizes.append(float(count * weights + whole.buffer_bytes))
        before, part = np.full(len(sizes), -1), np.full(len(sizes), _WEIGHTS)
        self._rows.append((there[:, 0], before, part, np.zeros(len(sizes)), np.array(sizes)))

    def add_optimizer(self, states: float) -> None:
        first = ~self._task.whose(lambda op: op.is_pass) & (self._task.version == 1)
        part = np.where(self._sharing(SUM), self._share, 1.0)
        behind_all = _EACH * len(part)
        sizes = part * (states * self._weights)
        self._add(first, behind_all, _OPTIMIZER, self._times.starts, sizes)

    def add_activations(self) -> None:
        """Add what activations take, those of a second forward apart."""
        task, starts, ends = self._task, self._times.starts, self._times.ends
        at_a_place = task.op == PLACES[Op.RECOMPUTE]
        again = np.where(at_a_place, starts, self._times.again)
        begins_again = ~np.isnan(again)
        runs_again = np.zeros((self._schedule.stages, self._schedule.microbatches), np.bool_)
        runs_again[task.stage[begins_again], task.microbatch[begins_again]] = True
        keeps = task.whose(lambda op: op.is_pass) & ~at_a_place
        recomputed = keeps & runs_again[task.stage, task.microbatch]
        is_backward = task.whose(lambda op: op.is_backward)

        def more(received: bool, kept: bool) -> _Bytes:
            def size(op: Op, cost: StageCosts) -> float:
                whole = cost.received_bytes * received + cost.kept_bytes * kept
                return op.activation_bytes(whole, cost.whole.input_only_bytes * kept)

            return self._sized(size)

        kept = self._sized(lambda op, cost: cost.kept_bytes)
        frees = task.whose(lambda op: any(item in (ACTIVATIONS, REST) for item in op.takes))
        when = np.where(frees, ends, starts)
        self._add(begins_again, 0, _RECOMPUTE, again, kept)
        self._add(recomputed & is_backward, 1, _RECOMPUTE, ends, more(False, True))
        self._add(recomputed, 2, _ACTIVATIONS, when, more(True, False))
        self._add(keeps & ~recomputed, 2, _ACTIVATIONS, when, more(True, True))

    def add_gradients(self) -> None:
        """Add what sums of gradients take, from their first pass to their update."""
        task, starts, ends = self._task, self._times.starts, self._times.ends
        is_update = ~task.whose(lambda op: op.is_pass)
        receives = task.whose(lambda op: SENT_GRADIENTS in op.takes)
        update = np.array(self._schedule.update_of)[task.stage, task.microbatch]
        place = task.worker * self._schedule.stages + task.stage
        # For each task how often its worker has sent away all gradients of its stage.
        sends, sent = task.whose(lambda op: SENT_GRADIENTS in op.gives), np.zeros_like(place)
        for each in np.unique(place[sends]).tolist():
            sent[place == each] = sends[place == each].cumsum()
        summed = (place * (1 + update.max()) + update) * (1 + sent.max(initial=0)) + sent
        adding = np.flatnonzero(task.whose(lambda op: op.adds_gradient) | receives)
        sums, places = np.unique(summed[adding], return_index=True)
        first = np.zeros(len(summed), np.bool_)
        first[adding[places]] = True
        height = self._sized(lambda op, cost: cost.gradients_at_height(op))
        self._add(first, 3, _GRADIENTS, starts, height)
        self._add(first, 4, _GRADIENTS, ends, self._weights - height)
        beside = receives & ~first  # a sum that is added to the worker's own
        self._add(beside, 3, _GRADIENTS, starts, self._weights)
        self._add(beside, 4, _GRADIENTS, ends, -self._weights)
        elsewhere = is_update & ~np.isin(summed, sums)  # all its gradients are other workers'
        self._add(elsewhere, 0, _GRADIENTS, starts, self._weights)
        left = np.where(self._sharing(SUM), self._share, 1.0)  # by a sum before the update
        self._add(is_update, 1, _GRADIENTS, ends, -left * self._weights)

    def add_items(self) -> None:
        """Add what transfers move, also at a partner, and what a user's own ops keep.

        A user's item is there once, for a microbatch or for the stage, however often it is given.
        """
        graph, there = self._schedule.dependencies, set[tuple[object, ...]]()
        rows: list[tuple[float, ...]] = []
        moves = graph.of(lambda op: op not in PASSES and {*op.gives, *op.takes} - _COUNTED)
        for number in moves:
            op, stage, microbatch, _ = graph.tasks[number]
            own, cost = graph.worker_of[number], self._costs[stage]
            is_whole = op.peer is not None or self._borrowed[own, stage]
            changes = [(item, 1, self._times.starts) for item in op.gives]
            changes += [(item, -1, self._times.ends) for item in op.takes]
            for item, sign, when in changes:
                worker = op.peer if item.is_away or (item.is_sent and sign < 0) else own
                if worker is None or item in _COUNTED or (item is GRADIENTS and sign > 0):
                    continue  # these as passes that add gradients
                size, part = sign * cost.item_bytes(item), _PART_OF.get(item)
                if part is not None:
                    size *= 1 if is_whole else 1 - self._share
                else:
                    part = _WEIGHTS if item.weights else _ACTIVATIONS
                    which = item, worker, stage, microbatch if item.each == "microbatch" else None
                    if not item.is_sent and (sign > 0) == (which in there):
                        continue
                    there ^= {which}
                rows.append((worker, _EACH * number + (sign > 0), part, when[number], size))
        each = np.array(rows).reshape(-1, 5).T
        whole = each[:3].astype(np.int64)
        self._rows.append((whole[0], whole[1], whole[2], each[3], each[4]))
