"""What in a forward depends on the sizes of the batch, told by comparing recordings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipekit.partition.recording.program import Growth, Program, RecordedStep
from pipekit.partition.recording.recorder import LENGTH
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import (
    Constant,
    Size,
    StageDevice,
    Template,
    opened,
)
from pipekit.partition.recording.traced import TracedNumber, plain

_LENGTH = re.compile(rf"\b{LENGTH}(\d+)_(\d+)\b")

ROWS = "rows"
Sizes = Mapping[Any, int]


class Unifier:
    """Makes the program of which recordings with batches of other sizes are instances.

    Refused is a forward in which what runs depends on the sizes otherwise than by numbers that grow
    with them or are computed from ``x.shape``.  The second recording has another number of rows
    than the first, every later one another length than the second.  In arguments the model's
    ``device`` follows the stage.
    """

    def __init__(
        self, sizes: Sequence[Sizes], recorded: Sequence[Program], device: torch.device
    ) -> None:
        self._sizes, self._recorded, self._device = sizes, recorded, device

    def program(self) -> Program:
        first = self._recorded[0]
        for other, sizes in zip(self._recorded[1:], self._sizes[1:], strict=True):
            self._require_same_steps(first, other, sizes)
        self._made = {
            number: replace(made, grows=tuple(map(self._growth, zip(*shapes, strict=True))))
            for number, made in first.made.items()
            for shapes in [[each.made[number].shape for each in self._recorded]]
        }
        return replace(
            first,
            steps=tuple(map(self._step, *(each.steps for each in self._recorded))),
            output=self._unified([each.output for each in self._recorded], "the output"),
            made=self._made,
            sizes=self._sizes[0],
            limits=tuple(self._limits()),
        ).without_dead_steps()

    def _require_same_steps(self, one: Program, other: Program, sizes: Sizes) -> None:
        known, changed = sizes_text(self._sizes[0]), sizes_text(sizes)
        for first, second in zip(one.steps, other.steps, strict=False):
            if (first.module, first.operation) != (second.module, second.operation):
                raise NotRecordable(
                    f"what runs depends on the number of rows or on the batch: {first.title} with "
                    f"{known}, and {second.title} with {changed} ({first.place}): put that part "
                    f"into a block by blocks=[...]"
                )
            dims = [[len(each.made[n].shape) for n in first.results] for each in (one, other)]
            if first.results != second.results or first.grad != second.grad or dims[0] != dims[1]:
                raise NotRecordable(
                    f"{first.title} gives other tensors with {changed} than with {known}: put it "
                    f"into a block by blocks=[...]"
                )
        if len(one.steps) != len(other.steps):
            raise NotRecordable(
                f"the forward runs {len(one.steps)} steps with {known} and {len(other.steps)} with "
                f"{changed}: put what depends on the number of rows into a block by blocks=[...]"
            )

    def _linear(self, numbers: Sequence[int]) -> tuple[dict[str, int], int] | None:
        """Return how numbers grow with each size, and what they are without; None: otherwise."""
        # There is one recording more than there are sizes: one solution, if it is of whole numbers.
        matrix = np.array([[*sizes.values(), 1] for sizes in self._sizes])
        found = np.rint(np.linalg.solve(matrix, numbers)).astype(int)
        if not np.array_equal(matrix @ found, numbers):
            return None
        *times, plus = found.tolist()
        names = self._sizes[0]
        return {name: factor for name, factor in zip(names, times, strict=True) if factor}, plus

    def _growth(self, lengths: Sequence[int]) -> Growth | None:
        found = self._linear(lengths)
        if found is None or len(found[0]) != 1 or min(found[0].values()) < 0:
            return None
        ((name, times),) = found[0].items()
        return Growth(name, times, found[1])

    def _step(self, *steps: RecordedStep) -> RecordedStep:
        one = steps[0]
        where = f"{one.module or one.operation} at {one.place}"
        return replace(
            one,
            arguments=self._unified([step.arguments for step in steps], where),
            held=one.held if all(step.held == one.held for step in steps) else None,
        )

    def _unified(self, found: Sequence[Template], where: str) -> Template:
        one = found[0]
        containers = [*filter(None, map(opened, found))]
        if len(containers) == len(found):
            each_holds = [list(children) for children, _ in containers]
            for other, holds, sizes in zip(found, each_holds, self._sizes, strict=True):
                if type(one) is not type(other) or len(holds) != len(each_holds[0]):
                    raise self._differ(type(one).__name__, type(other).__name__, sizes, where)
            columns = zip(*each_holds, strict=True)
            return containers[0][1]([self._unified(column, where) for column in columns])
        numbers = [plain(each) for each in found]
        texts = {each.expression if isinstance(each, TracedNumber) else None for each in found}
        if len(texts) == 1 and (text := texts.pop()) is not None:
            computed = self._in_sizes(text)
            if computed and computed.names and numbers == [*map(computed.at, self._sizes)]:
                return computed
        # Whole numbers, which may count, also as a sum that began with 0.0.
        counts = all(type(n) is int or (type(n) is float and n.is_integer()) for n in numbers)
        if counts and len(set(numbers)) > 1:
            linear = self._linear([int(number) for number in numbers])
            if linear is None:
                raise self._differ(numbers[0], numbers[-1], self._sizes[-1], where)
            terms = [f"{factor} * {name}" for name, factor in linear[0].items()]
            text = " + ".join([*terms, str(linear[1])])
            return Size(f"1.0 * ({text})" if isinstance(numbers[0], float) else text)
        for other, sizes in zip(numbers[1:], self._sizes[1:], strict=True):
            if not _is_same(numbers[0], other):
                raise self._differ(numbers[0], other, sizes, where)
        if isinstance(one, torch.device) and one == self._device:
            return StageDevice()
        return numbers[0]

    def _in_sizes(self, text: str) -> Size | None:
        """Return an expression in lengths of values as one in sizes of the batch, if it is."""
        lengths: dict[str, str] = {}
        for name in _LENGTH.finditer(text):
            number, dimension = int(name[1]), int(name[2])
            made = self._made[number]
            if dimension >= len(made.shape):
                return None  # a view that was edited in place
            growth = made.grows[dimension]
            if growth is not None:
                is_size = (growth.times, growth.plus) == (1, 0)
                product = f"({growth.times} * {growth.size} + {growth.plus})"
                lengths[name[0]] = growth.size if is_size else product
            elif len({each.made[number].shape[dimension] for each in self._recorded}) == 1:
                lengths[name[0]] = str(made.shape[dimension])
            else:
                return None
        return Size(_LENGTH.sub(lambda name: lengths[name[0]], text))

    def _limits(self) -> list[Size]:
        """Return the comparisons that were true in all recordings, and may not be in others."""
        limits: dict[Size, None] = {}
        common = set.intersection(*(set(each.compared) for each in self._recorded))
        for text in filter(common.__contains__, self._recorded[0].compared):
            limit = self._in_sizes(text)
            if limit is None and len(self._sizes[0]) > 1:
                raise NotRecordable(f"the forward asks whether {text}, of which no size tells")
            if limit is not None and limit.names:
                one, equals, other = limit.expression.partition(" == ")
                if not (equals and one == other):
                    limits[limit] = None
        return list(limits)

    def _differ(self, one: Any, other: Any, sizes: Sizes, where: str) -> NotRecordable:
        if isinstance(one, Constant):
            return NotRecordable(
                f"{where} uses a tensor that no operation of torch gave and that differs from "
                f"forward to forward: compute it from the batch by torch's functions, or put "
                f"this part into a block by blocks=[...]"
            )
        if "Cache" in type(one).__name__:
            return NotRecordable(
                f"{where} is given a {type(one).__name__}, which is not a tensor: pass "
                f"use_cache=False, or set model.config.use_cache = False"
            )
        if type(one) is type(other) and not isinstance(one, (int, float, str, bool)):
            return NotRecordable(
                f"{where} is given a {type(one).__name__} made anew in each forward, which cannot "
                f"pass from stage to stage: pass tensors, or put both ends into one block by "
                f"blocks=[...]"
            )
        return NotRecordable(
            f"{where} is given {one!r} with {sizes_text(self._sizes[0])} and {other!r} with "
            f"{sizes_text(sizes)}: compute what depends on the batch by torch's functions, or from "
            f"x.shape (of len(x) the recording does not know), or put this part into a block by "
            f"blocks=[...]"
        )


def _is_same(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, Constant):
        return _is_same(one.tensor, other.tensor)
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one.__hash__ and one == other)


def sizes_text(sizes: Sizes) -> str:
    """Return sizes for messages: ``6 rows of length 7 x 9``."""
    lengths = " x ".join(str(size) for name, size in sizes.items() if name != ROWS)
    return f"{sizes[ROWS]} rows{f' of length {lengths}' if lengths else ''}"
