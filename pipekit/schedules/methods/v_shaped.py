"""A V of two stages a worker: ZB-V, V-Half and V-Min (Qi et al., ICLR and NeurIPS 2024).

Pipeline Parallelism with Controllable Memory (NeurIPS 2024) makes a schedule of the slots of one
microbatch's passes on every worker; their repetition, one microbatch each ``_PERIOD`` slots, which
decides the memory of the steady state; and a reordering of the warm-up and the drain.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count

from pipekit.schedules.methods.flushed import Turns, flushed, v_stages, v_workers
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule


def zb_v(stages: int, microbatches: int) -> Schedule:
    """Return ZB-V's schedule: a microbatch's backward begins where its forward ended.

    Worker ``w`` of ``p`` has the stages ``w`` and ``2 p - 1 - w``, a V (Zero Bubble Pipeline
    Parallelism, section 6).  With passes that take equally long no worker idles in its span, and
    each has at most ``2 p`` passes' activations.  The order is that of ``ScheduleZBVZeroBubble`` in
    ``torch.distributed.pipelining``, also for fewer microbatches than fill the pipeline; the
    paper's code searches one.  Each worker has two of the ``stages``, each batch ``microbatches``.
    """
    workers = v_workers(stages, microbatches, "ZB-V", "zb_h1")
    each = (_passes(worker, workers, microbatches) for worker in range(workers))
    return flushed("ZB-V", each)


def _passes(worker: int, workers: int, microbatches: int) -> list[Pass]:
    down, back = v_stages(worker, workers)
    behind = workers - worker
    filling = max(2 * workers - 1, microbatches)  # fewer leave some of these passes out
    turns = Turns()
    # warm-up: what fills the time until the first microbatch comes back
    for _ in range(2 * behind - 1):
        turns.add(Op.FORWARD, down)
    for _ in range(worker):
        turns.add(Op.FORWARD, back, down)
    for _ in range(behind):
        turns.add(Op.FORWARD, back)
        turns.add_split(back)
    # steady
    while turns.count(Op.FORWARD, back) < filling:
        if turns.count(Op.FORWARD, down) < filling:
            turns.add(Op.FORWARD, down)
        turns.add_split(down)
        turns.add(Op.FORWARD, back)
        turns.add_split(back)
    # drain: parts for the input first, of which others wait
    for _ in range(worker):
        turns.add(Op.BACKWARD_INPUT, down, back)
    for _ in range(behind):
        turns.add_split(down)
    for stage in (back, down):
        while turns.count(Op.BACKWARD_WEIGHT, stage) < filling:
            turns.add(Op.BACKWARD_WEIGHT, stage)
    return [each for each in turns.passes if each[2] < microbatches]


_PERIOD = 6
"""Slots of a microbatch on a worker: a forward and both parts of a backward on two stages."""

_Row = dict[int, Pass]
"""A worker's passes by slot."""


_Block = tuple[int, int, int, int]
"""The slots of the first microbatch's F down and back, and its I back and down, on a worker of a V.

Its parts for the weights go where slots are left."""


def v_half(stages: int, microbatches: int) -> Schedule:
    """Return V-Half's schedule: half of 1F1B's activations, by a V of two stages a worker.

    A microbatch comes to the next worker every other slot on the way down, every slot on the way
    back, so that the ``p`` workers keep equally many activations: at most floor((p + 2) / 2) whole
    microbatches' (section 3.2 and Table 1; slots of zbv_greedy.py in
    github.com/sail-sg/zero-bubble-pipeline-parallelism).  ``stages`` and ``microbatches`` are as
    for :func:`zb_v`.
    """
    p = v_workers(stages, microbatches, "V-Half", "zb_h1")
    gap = 0 if p % 2 else 3  # so that no two passes of a worker want one slot
    blocks = [
        (2 * w, 3 * p - w - 2, 3 * p + gap + 2 * w - 1, 6 * p + gap - w - 2) for w in range(p)
    ]
    return flushed("V-Half", _repeated(blocks, microbatches))


def v_min(stages: int, microbatches: int) -> Schedule:
    """Return V-Min's schedule: a third of 1F1B's activations, by a V of two stages a worker.

    A microbatch comes to the next worker in the next slot, both ways, so that its activations live
    as shortly as they can: at most floor((p + 4) / 3) whole microbatches' (section 3.2 and Table
    1).  In return, passes that do not take equally long make workers wait.  ``stages`` and
    ``microbatches`` are as for :func:`zb_v`.
    """
    p = v_workers(stages, microbatches, "V-Min", "zb_h1")
    gap = 0 if p % 3 else 2  # so that no two passes of a worker want one slot
    blocks = [(w, 2 * p - w - 1, 2 * p + gap + w, 4 * p + gap - w - 1) for w in range(p)]
    return flushed("V-Min", _repeated(blocks, microbatches))


def _repeated(blocks: Sequence[_Block], microbatches: int) -> list[list[Pass]]:
    """Return every worker's passes of a batch, each where its repeated block has it.

    Before the first microbatch's backward is done, and after the last one's forward has begun, a
    pass is then moved to the first empty slot in which its data is there and its worker keeps no
    more activations than the block's worst worker.
    """
    rows: list[_Row] = []
    for worker, block in enumerate(blocks):
        down, back = v_stages(worker, len(blocks))
        forward, inputs = Op.FORWARD, Op.BACKWARD_INPUT
        order = (forward, down), (forward, back), (inputs, back), (inputs, down)
        first = [*zip(block, order, strict=True)]
        every = range(microbatches)
        rows.append({slot + _PERIOD * k: (*each, k) for k in every for slot, each in first})
    most = max(_with_weights(row)[1] for row in rows)
    slot_of = {each: slot for row in rows for slot, each in row.items()}
    steady = range(slot_of[Op.BACKWARD_INPUT, 0, 0], slot_of[Op.FORWARD, 0, microbatches - 1] + 1)
    for slot, worker in sorted((slot, w) for w, row in enumerate(rows) for slot in row):
        if slot not in steady:
            row = rows[worker]
            op, stage, k = each = row.pop(slot)
            if op is Op.FORWARD:
                needs = [(op, stage, k - 1), (op, stage - 1, k)]
            else:
                needs = [(op, stage, k - 1), (op, stage + 1, k), (Op.FORWARD, stage, k)]
            ready = 1 + max(slot_of.get(need, -1) for need in needs)
            slot_of[each] = next(
                earlier
                for earlier in range(ready, slot + 1)
                if earlier not in row and _with_weights({**row, earlier: each})[1] <= most
            )
            row[slot_of[each]] = each
    return [[each for _, each in sorted(_with_weights(row)[0].items())] for row in rows]


def _with_weights(row: Mapping[int, Pass]) -> tuple[_Row, int]:
    """Return a worker's passes with parts for the weights in the first slots that are empty."""
    passes, waiting = dict(row), deque[Pass]()
    last, kept, most = max(row), 0, 0
    for slot in count():
        if slot > last and not waiting:
            break
        if slot not in row:
            if waiting:
                passes[slot] = waiting.popleft()
                kept -= 1
            continue
        op, stage, k = row[slot]
        if op is Op.FORWARD:
            kept += 1
            most = max(most, kept)
        else:
            waiting.append((Op.BACKWARD_WEIGHT, stage, k))
    return passes, most
