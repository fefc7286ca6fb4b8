"""The graph of a recorded model's layers: which of them read which values."""

import copy
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from pipekit.partition.recorded.boundaries import Boundary
from pipekit.partition.recorded.recorded_model import RecordedModel
from pipekit.partition.recording.program import Program
from pipekit.partition.recording.templates import values


class Passed(NamedTuple):
    """A value that goes from one layer of a recorded model to others, in training.

    Attributes:
        number: of the value.
        source: the layer that makes it; None if it is of the batch.
        users: the other layers that read it; what the model returns, the last layer reads.
    """

    number: int
    source: int | None
    users: tuple[int, ...]


def passed_values(recorded: RecordedModel) -> tuple[Passed, ...]:
    """Return the values that some layer reads and does not make, in the order of their making."""
    program = recorded.training
    stops = [*(boundary.training for boundary in recorded.boundaries), len(program.steps)]
    source: dict[int, int | None] = dict.fromkeys(values(program.batch))
    users: dict[int, set[int]] = {}
    for position, step in enumerate(program.steps):
        layer = bisect_right(stops, position)
        for number in step.reads:
            users.setdefault(number, set()).add(layer)
        source.update((number, layer) for number in step.results)
    for number in values(program.output):
        users.setdefault(number, set()).add(len(stops) - 1)
    found = (
        Passed(number, made, tuple(sorted(users.get(number, set()) - {made})))
        for number, made in source.items()
    )
    return tuple(passed for passed in found if passed.users)


def in_order(recorded: RecordedModel, order: Sequence[int]) -> RecordedModel:
    """Return a recorded model whose layers run in another order.

    Whether they can run in it, and do the same, is for :func:`pipekit.partition.verify.verify` to
    find out: gradients of a value that three layers read are summed in the order of these.

    Args:
        recorded: the model.
        order: the number that each layer has there, each once.
    """
    stops = Boundary(len(recorded.training.steps), len(recorded.evaluation.steps))
    ends = list(pairwise([Boundary(0, 0), *recorded.boundaries, stops]))
    runs = [ends[layer] for layer in order]
    training = [(first.training, stop.training) for first, stop in runs]
    evaluation = [(first.evaluation, stop.evaluation) for first, stop in runs]
    made = copy.copy(recorded)
    made.training = _joined(recorded.training, training)
    made.evaluation = _joined(recorded.evaluation, evaluation)
    made.boundaries = [
        Boundary(*places) for places in zip(_lengths(training), _lengths(evaluation), strict=True)
    ][:-1]
    return made


def _joined(program: Program, runs: Sequence[tuple[int, int]]) -> Program:
    """Return a program with runs of its steps one after another."""
    steps = chain.from_iterable(program.steps[first:stop] for first, stop in runs)
    return replace(program, steps=tuple(steps))


def _lengths(runs: Sequence[tuple[int, int]]) -> list[int]:
    return list(accumulate(stop - first for first, stop in runs))
