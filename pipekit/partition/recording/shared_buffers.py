"""Buffers that several blocks are given, a mask say: read once, and carried along as a value."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from torch import Tensor, nn

from pipekit.partition.recording.program import Made, Program, Step
from pipekit.partition.recording.templates import Value, Weight, encode, rebuilt


def with_carried_buffers(program: Program, model: nn.Module) -> Program:
    """Return a program that reads each buffer once that several steps are given.

    Two stages must not both have a buffer, which either might edit; so no cut could part these
    steps.  Buffers that a step edits, or that a module has which it calls, stay as they are.
    """
    buffers = dict(model.named_buffers(remove_duplicate=False))
    calls = {step.module for step in program.steps if step.module is not None}
    kept = {id(each) for name in calls for each in model.get_submodule(name).buffers()}
    edited = chain.from_iterable(step.edited_weights for step in program.steps)
    kept |= {id(buffers[name]) for name in edited if name in buffers}
    given: dict[str, int] = {}
    for step in program.steps:
        for name in step.weights & buffers.keys():
            given[name] = given.get(name, 0) + (id(buffers[name]) not in kept)
    numbers = {
        name: len(program.made) + n for n, name in enumerate(sorted(given)) if given[name] > 1
    }
    steps = tuple(_with_reads(program.steps, numbers))
    made = {number: _made(buffers[name], number) for name, number in numbers.items()}
    return replace(program, steps=steps, made={**program.made, **made})


def _with_reads(steps: tuple[Step, ...], numbers: dict[str, int]) -> Iterator[Step]:
    """Yield the steps, before the first user of each buffer one that reads it."""

    def carried(leaf: object) -> object:
        is_read = isinstance(leaf, Weight) and leaf.name in numbers
        return Value(numbers[leaf.name]) if is_read else leaf  # type: ignore[attr-defined]

    todo = dict(numbers)
    for step in steps:
        for name in sorted(step.weights & todo.keys()):
            yield Step(
                operation="torch.Tensor.detach",
                arguments=encode(((Weight(name),), {}), lambda leaf: leaf),
                results=(todo.pop(name),),
                place=name,
            )
        yield replace(step, arguments=rebuilt(step.arguments, carried))


def _made(buffer: Tensor, number: int) -> Made:
    shape = tuple(buffer.shape)
    return Made(shape, (None,) * len(shape), buffer.nbytes, False, number)
