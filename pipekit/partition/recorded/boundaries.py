"""Between which steps of a recorded model a stage may end."""

from collections.abc import Iterable
from typing import NamedTuple

from pipekit.partition.recording.program import Program, Step
from pipekit.partition.recording.templates import Rows, leaves, values


class RowSource(NamedTuple):
    """Where a stage reads the number of rows: a dimension that is ``times`` as long."""

    value: int
    dimension: int
    times: int

    @classmethod
    def find(
        cls, program: Program, carried: Iterable[int], rows: int, other: int
    ) -> "RowSource | None":
        """Return one among the values that a stage is given, or None.

        Args:
            program: of which they are values.
            carried: their numbers.
            rows, other: of the program's two recordings.
        """
        for number in carried:
            made = program.made[number]
            for dimension, (size, other_size) in enumerate(
                zip(made.shape, made.other_shape, strict=True)
            ):
                if size and size % rows == 0 and other_size == size // rows * other:
                    return cls(number, dimension, size // rows)
        return None


class Boundary(NamedTuple):
    """Positions before which both programs may be cut together: in training, in evaluation."""

    training: int
    evaluation: int


def boundaries(
    training: Program, evaluation: Program, rows: tuple[int, int], shared: frozenset[str]
) -> list[Boundary]:
    """Return where the model may be cut, in order: between modules' calls, if nothing forbids it.

    Of the operations between two calls, so many belong to the first that the fewest bytes cross.

    Args:
        training, evaluation: its programs.
        rows: of their two recordings.
        shared: modules that must not be called by two stages, since they have buffers.
    """
    closed, other_closed = (_closed(p, rows, shared) for p in (training, evaluation))
    calls, other_calls = list(training.calls()), list(evaluation.calls())
    found = []
    for count in range(1, len(calls)):
        done = {call for _, call in calls[:count]}
        last_done = max((p for p, call in other_calls if call in done), default=-1)
        todo = (p for p, call in other_calls if call not in done)
        first_todo = next(todo, len(evaluation.steps))
        gap = range(calls[count - 1][0] + 1, calls[count][0] + 1)
        position = _narrowest(training, gap, closed)
        # Empty if evaluation calls the modules in another order.
        other = _narrowest(evaluation, range(last_done + 1, first_todo + 1), other_closed)
        if position is not None and other is not None:
            found.append(Boundary(position, other))
    return found


def _narrowest(program: Program, gap: range, closed: set[int]) -> int | None:
    """Return the position of a gap where the fewest bytes cross, the first of several."""
    return min((p for p in gap if p not in closed), key=program.carried_bytes, default=None)


def _closed(program: Program, rows: tuple[int, int], shared: frozenset[str]) -> set[int]:
    """Return the positions before which a program must not be cut."""
    closed: set[int] = set()
    made_by = dict.fromkeys(values(program.batch), 0)
    storage_from = {program.made[number].storage: 0 for number in made_by}
    users: dict[str, list[int]] = {}
    for position, step in enumerate(program.steps):
        for number in step.results:
            made_by[number] = position + 1
            storage_from.setdefault(program.made[number].storage, position + 1)
        for number in step.edits:
            # Whoever shares the edited storage must be in the editor's stage.
            storage = program.made[number].storage
            closed |= set(range(min(made_by[number], storage_from[storage]), position + 1))
        for name in _held(step, program, shared):
            users.setdefault(name, []).append(position)
    for positions in users.values():
        closed |= set(range(positions[0] + 1, positions[-1] + 1))
    last = max((n for n, step in enumerate(program.steps) if _counts_rows(step)), default=-1)
    for position in range(1, last + 1):
        if RowSource.find(program, program.alive(position), *rows) is None:
            closed.add(position)
    return closed


def _held(step: Step, program: Program, shared: frozenset[str]) -> set[str]:
    """Return what a step uses that two stages must not both have."""
    edited = {name for other in program.steps for name in other.edited_weights}
    held = set(step.weights & edited)
    if step.module in shared:
        held.add(step.module)
    return held


def _counts_rows(step: Step) -> bool:
    return any(isinstance(leaf, Rows) for leaf in leaves(step.arguments))
