"""Between which steps of a recorded model a stage may end."""

from collections.abc import Iterable, Mapping, Set
from itertools import pairwise
from typing import NamedTuple

from pipekit.partition.recording.program import Growth, Program, RecordedStep
from pipekit.partition.recording.templates import values


class SizeSource(NamedTuple):
    """Where a stage reads a size of the batch: a dimension that grows with it."""

    value: int
    dimension: int
    growth: Growth


def size_sources(program: Program, carried: Iterable[int]) -> dict[str, SizeSource]:
    """Return where each size of the batch, by name, can be read among the values of a stage."""
    found: dict[str, SizeSource] = {}
    for number in carried:
        for dimension, growth in enumerate(program.made[number].grows):
            if growth is not None:
                found.setdefault(growth.size, SizeSource(number, dimension, growth))
    return found


class CutPlace(NamedTuple):
    """Positions before which both programs may be cut together: in training, in evaluation."""

    training: int
    evaluation: int


def boundaries(
    training: Program,
    evaluation: Program,
    tensors: Mapping[str, Set[str]],
    buffers: Set[str],
) -> list[CutPlace]:
    """Return where the model may be cut, in order: between blocks' calls, if nothing forbids it.

    Of the operations between two calls, so many belong to the first that the fewest bytes cross.

    Args:
        training, evaluation: its programs.
        tensors: of each module and tensor of the model, by name, the parameters and buffers that
            whoever uses it has, by one name of each.
        buffers: which of these are buffers.
    """
    closed, other_closed = (_closed(p, tensors, buffers) for p in (training, evaluation))
    calls, other_calls = training.calls(), evaluation.calls()
    found = []
    positions = list(calls.values())
    for count, (before, behind) in enumerate(pairwise(positions), start=1):
        done = set(list(calls)[:count])
        last_done = max((at for call, at in other_calls.items() if call in done), default=-1)
        todo = (at for call, at in other_calls.items() if call not in done)
        first_todo = min(todo, default=len(evaluation.steps))
        position = _narrowest(training, range(before + 1, behind + 1), closed)
        # Empty if evaluation calls the modules in another order.
        other = _narrowest(evaluation, range(last_done + 1, first_todo + 1), other_closed)
        if position is not None and other is not None:
            found.append(CutPlace(position, other))
    return found


def _narrowest(program: Program, gap: range, closed: set[int]) -> int | None:
    """Return the position of a gap where the fewest bytes cross, the first of several."""
    return min((p for p in gap if p not in closed), key=program.carried_bytes, default=None)


def _closed(program: Program, tensors: Mapping[str, Set[str]], buffers: Set[str]) -> set[int]:
    """Return the positions before which a program must not be cut."""
    closed: set[int] = set()
    made_by = dict.fromkeys(values(program.batch), 0)
    storage_from = {program.made[number].storage: 0 for number in made_by}
    users: dict[str, list[int]] = {}
    # What no two stages may both have: nobody keeps copies of these equal.
    single = set(buffers).union(*(step.edited_weights for step in program.steps))
    for position, step in enumerate(program.steps):
        for number in step.results:
            made_by[number] = position + 1
            storage_from.setdefault(program.made[number].storage, position + 1)
        for number in step.edits:
            # Whoever shares the edited storage must be in the editor's stage.
            storage = program.made[number].storage
            closed |= set(range(min(made_by[number], storage_from[storage]), position + 1))
        for name in single & _held(step, tensors):
            users.setdefault(name, []).append(position)
    for positions in users.values():
        closed |= set(range(positions[0] + 1, positions[-1] + 1))
    needed: set[str] = set()  # sizes of the batch, by this step or a later one
    for position in reversed(range(1, len(program.steps))):
        needed |= program.steps[position].sizes
        if needed - size_sources(program, program.alive(position)).keys():
            closed.add(position)
    return closed


def _held(step: RecordedStep, tensors: Mapping[str, Set[str]]) -> set[str]:
    """Return the parameters and buffers that a step uses."""
    names = step.weights if step.module is None else {*step.weights, step.module}
    return set().union(*(tensors[name] for name in names))
