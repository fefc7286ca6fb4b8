"""What in a recorded forward depends on the number of rows, told by comparing two recordings."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipekit.partition.recording.program import Growth, Made, Program, Step
from pipekit.partition.recording.recorder import Tape
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import (
    Constant,
    Device,
    Node,
    Size,
    Template,
    Value,
    Weight,
)

_SHARED_ATOMS = (type(None), bool, str, bytes, torch.dtype, torch.layout, torch.memory_format)


def unify(one: Tape, other: Tape, rows: tuple[int, int], device: torch.device) -> Program:
    """Return the program of which two recordings with different numbers of rows are instances.

    Args:
        one, other: the recordings, in the same mode.
        rows: how many rows each had; the second had one more.
        device: where the model computes; the same object of it in arguments follows the stage.

    Raises:
        NotRecordable: what ran, or with which arguments, depends on the rows otherwise than by
            integers that grow with them; the message names the line.
    """
    for first, second in zip(one.steps, other.steps, strict=False):
        if (first.module, first.operation) != (second.module, second.operation):
            raise NotRecordable(
                f"what runs depends on the number of rows or on the batch: {first.title} with "
                f"{rows[0]} rows, and {second.title} with {rows[1]} ({first.place}): put that part "
                f"into a block by blocks=[...]"
            )
    if len(one.steps) != len(other.steps):
        raise NotRecordable(
            f"forward runs {len(one.steps)} steps with {rows[0]} rows and {len(other.steps)} with "
            f"{rows[1]}: put what depends on the number of rows into a block by blocks=[...]"
        )
    steps = tuple(
        _unified_step(first, second, rows, device)
        for first, second in zip(one.steps, other.steps, strict=True)
    )
    output = _unified(one.output, other.output, rows, device, "the output")
    storages: dict[int, int] = {}
    made = {
        number: Made(
            tuple(tensor.shape),
            tuple(map(partial(_growth, rows), tensor.shape, other.tensors[number].shape)),
            tensor.nbytes,
            one.requires_grad[number],
            storages.setdefault(tensor.untyped_storage()._cdata, number),
        )
        for number, tensor in one.tensors.items()
    }
    sizes = {"rows": rows[0]}
    program = Program(batch=one.batch, steps=steps, output=output, made=made, sizes=sizes)
    return program.without_dead_steps()


def _growth(rows: tuple[int, int], length: int, other: int) -> Growth | None:
    """Return how a dimension grows with the rows, if it is so many times as long."""
    times = length // rows[0]
    grows = times and (length, other) == (times * rows[0], times * rows[1])
    return Growth("rows", times) if grows else None


def _unified_step(one: Step, other: Step, rows: tuple[int, int], device: torch.device) -> Step:
    if one.results != other.results or one.grad != other.grad:
        raise NotRecordable(
            f"{one.title} gives other tensors with {rows[1]} rows than with {rows[0]}: put it into "
            f"a block by blocks=[...]"
        )
    where = f"{one.module or one.operation} at {one.place}"
    arguments = _unified(one.arguments, other.arguments, rows, device, where)
    return replace(one, arguments=arguments)


def _unified(
    one: Template, other: Template, rows: tuple[int, int], device: torch.device, where: str
) -> Template:
    if isinstance(one, Node) and isinstance(other, Node):
        if one.type is not other.type or len(one.children) != len(other.children):
            raise _differ(one.type.__name__, other.type.__name__, rows, where)
        pairs = zip(one.children, other.children, strict=True)
        children = tuple(_unified(a, b, rows, device, where) for a, b in pairs)
        return Node(one.type, one.context, children)
    if isinstance(one, (Value, Weight)) or isinstance(other, (Value, Weight)):
        if one != other:
            raise _differ(one, other, rows, where)
        return one
    if isinstance(one, Constant) and isinstance(other, Constant):
        if one.tensor is not other.tensor and not _equal(one.tensor, other.tensor):
            raise NotRecordable(
                f"{where} uses a tensor that no operation of torch gave and that differs from "
                f"forward to forward: compute it from the batch by torch's functions, or put this "
                f"part into a block by blocks=[...]"
            )
        return one
    if isinstance(one, torch.device) and one == device == other:
        return Device()
    if type(one) is int and type(other) is int and one != other:
        times = other - one  # for one row more
        return Size(f"{times} * rows + {one - times * rows[0]}")
    if one is other or (type(one) is type(other) and _is_same(one, other)):
        return one
    raise _differ(one, other, rows, where)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    return bool(isinstance(one, (int, complex, *_SHARED_ATOMS)) or one.__hash__) and one == other


def _equal(one: Tensor, other: Tensor) -> bool:
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.equal(one, other)


def _differ(one: Any, other: Any, rows: tuple[int, int], where: str) -> NotRecordable:
    if "Cache" in type(one).__name__:
        return NotRecordable(
            f"{where} is given a {type(one).__name__}, which is no tensor: pass use_cache=False, "
            f"or set model.config.use_cache = False"
        )
    if type(one) is type(other) and not isinstance(one, (int, float, str, bool)):
        return NotRecordable(
            f"{where} is given a {type(one).__name__} made anew in each forward, which cannot pass "
            f"from stage to stage: pass tensors, or put both ends into one block by blocks=[...]"
        )
    return NotRecordable(
        f"{where} is given {one!r} with {rows[0]} rows and {other!r} with {rows[1]}: let torch's "
        f"functions compute what depends on the batch, or put this part into a block by "
        f"blocks=[...]"
    )
