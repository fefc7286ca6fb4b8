"""A worker's steps as one array of numbers, which is pickled and read back in no time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules import Message, Op, Payload, Step, Task, alike, distinct

_OPS, _PAYLOADS = list(Op), list(Payload)
_OP_NUMBERS = {op: number for number, op in enumerate(_OPS)}
_PAYLOAD_NUMBERS = {payload: number for number, payload in enumerate(_PAYLOADS)}


class PackedSteps(NamedTuple):
    """Steps as numbers.

    Attributes:
        numbers: of each step its own, then those of what it receives and sends; of steps that come
            again and again, only the first.
        pattern: no steps, repeated as these are.
    """

    numbers: NDArray[np.int64]
    pattern: Sequence[Step]


def pack(steps: Sequence[Step]) -> PackedSteps:
    """Return steps as numbers."""
    numbers: list[int] = []
    for (op, *task), receives, sends, *rest in distinct(steps):
        numbers += (_OP_NUMBERS[op], *task, *rest, len(receives), len(sends))
        for (payload, *message, _), worker in (*receives, *sends):  # all are first attempts
            numbers += (_PAYLOAD_NUMBERS[payload], *message, worker)
    return PackedSteps(np.array(numbers, np.int64), alike(steps, ()))


def unpack(packed: PackedSteps) -> Sequence[Step]:
    """Return the steps that these numbers stand for."""
    numbers: list[int] = packed.numbers.tolist()
    steps: list[Step] = []
    at = 0
    while at < len(numbers):
        op, stage, microbatch, version, slot, update, ends_batch, ends_update, receives, sends = (
            numbers[at : at + 10]
        )
        task = Task(_OPS[op], stage, microbatch, version)
        at += 10
        end = at + 5 * (receives + sends)
        messages = [
            (Message(_PAYLOADS[payload], *message), worker)
            for payload, *message, worker in zip(*[iter(numbers[at:end])] * 5, strict=True)
        ]
        received, sent = tuple(messages[:receives]), tuple(messages[receives:])
        steps.append(Step(task, received, sent, slot, update, bool(ends_batch), bool(ends_update)))
        at = end
    return alike(packed.pattern, tuple(steps))
