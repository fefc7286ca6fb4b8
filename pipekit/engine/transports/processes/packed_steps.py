"""A worker's steps as arrays of numbers, which are pickled and read back in no time."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.schedules import Message, Op, Payload, Step, Steps, Task

_OPS, _PAYLOADS = list(Op), list(Payload)
_OP_NUMBERS = {op: number for number, op in enumerate(_OPS)}
_PAYLOAD_NUMBERS = {payload: number for number, payload in enumerate(_PAYLOADS)}

_Numbers = NDArray[np.int64]


class PackedSteps(NamedTuple):
    """Steps as numbers.

    Attributes:
        head, period: of each step its numbers, then those of what it receives and sends.
        others: the steps' other attributes, with neither head nor period.
    """

    head: _Numbers
    period: _Numbers
    others: Steps


def pack(steps: Steps) -> PackedSteps:
    """Return steps as numbers."""
    return PackedSteps(
        _numbers(steps.head), _numbers(steps.period), replace(steps, head=(), period=())
    )


def unpack(packed: PackedSteps) -> Steps:
    """Return the steps that these numbers stand for."""
    return replace(packed.others, head=_steps(packed.head), period=_steps(packed.period))


def _numbers(steps: tuple[Step, ...]) -> _Numbers:
    numbers: list[int] = []
    for (op, *task), receives, sends, *rest in steps:
        numbers += (_OP_NUMBERS[op], *task, *rest, len(receives), len(sends))
        for (payload, *message, _), worker in (*receives, *sends):  # all are first attempts
            numbers += (_PAYLOAD_NUMBERS[payload], *message, worker)
    return np.array(numbers, np.int64)


def _steps(packed: _Numbers) -> tuple[Step, ...]:
    numbers: list[int] = packed.tolist()
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
    return tuple(steps)
