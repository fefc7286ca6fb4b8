"""What a forward does, as a row of steps that name the values they read and make."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pipekit.partition.recording.templates import Template, Weight, leaves, values


@dataclass(frozen=True, kw_only=True)
class Step:
    """A call of one of the model's modules, or one operation on tensors.

    Attributes:
        module: the name of the module that is called, or None.
        operation: the name of the function that is called, or None.
        arguments: template of the pair (positional, keyword) of arguments.
        results: for every tensor in what the call returns, in order, the number of its value.
        edits: the values that the step changes in place.
        edited_weights: parameters and buffers that an operation changes in place, by name.
        grad: whether gradients are tracked, as outside ``torch.no_grad()``.
        random: whether it draws random numbers.
        place: ``file:line`` of the call.
    """

    module: str | None = None
    operation: str | None = None
    arguments: Template
    results: tuple[int, ...]
    edits: frozenset[int] = frozenset()
    edited_weights: frozenset[str] = frozenset()
    grad: bool = True
    random: bool = False
    place: str = ""

    @property
    def reads(self) -> frozenset[int]:
        """The numbers of the values that the step takes."""
        return frozenset(values(self.arguments))

    @property
    def weights(self) -> frozenset[str]:
        """The parameters and buffers that are among the arguments, by name."""
        return frozenset(leaf.name for leaf in leaves(self.arguments) if isinstance(leaf, Weight))

    @property
    def title(self) -> str:
        """What the step calls, for messages."""
        return self.module or f"{self.operation} at {self.place}"


@dataclass(frozen=True)
class Made:
    """What is known of a value.

    Attributes:
        shape: in the example.
        other_shape: with another number of rows.
        nbytes: in the example.
        requires_grad: whether gradients flow through it.
        storage: values of one storage share their numbers, as views do.
    """

    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    nbytes: int
    requires_grad: bool
    storage: int


@dataclass(frozen=True, kw_only=True)
class Program:
    """A recorded forward, in one mode.

    Attributes:
        batch: template of the batch; its tensors are values.
        steps: in the order in which they ran.
        output: template of what the model returns.
        made: every value, by number.
    """

    batch: Template
    steps: tuple[Step, ...]
    output: Template
    made: Mapping[int, Made]

    def without_dead_steps(self) -> "Program":
        """Return the program without operations that change nothing and that nobody reads."""
        needed = set(values(self.output))
        kept = []
        for step in reversed(self.steps):
            acts = step.module or step.random or step.edits or step.edited_weights
            if acts or not needed.isdisjoint(step.results):
                needed |= step.reads
                kept.append(step)
        return replace(self, steps=tuple(reversed(kept)))

    def calls(self) -> Iterator[tuple[int, tuple[str, int]]]:
        """Yield the position of each step that calls a module, with (name, how often before)."""
        seen: dict[str, int] = {}
        for position, step in enumerate(self.steps):
            if step.module is not None:
                seen[step.module] = seen.get(step.module, -1) + 1
                yield position, (step.module, seen[step.module])

    def alive(self, cut: int) -> tuple[int, ...]:
        """Return the values made before step ``cut`` that it or a later one, or the output, reads.

        They are what a cut before that step carries, in the order in which they were made.
        """
        return tuple(n for n, (made, read) in self._lives.items() if made <= cut <= read)

    def carried_bytes(self, cut: int) -> int:
        """Return how many bytes a cut before step ``cut`` carries, in the example."""
        return sum(self.made[number].nbytes for number in self.alive(cut))

    @cached_property
    def _lives(self) -> dict[int, tuple[int, int]]:
        """For each value that is read, the step before which it is there, and the last to read it.

        The output is read by a step behind all others.
        """
        made = dict.fromkeys(values(self.batch), 0)
        last: dict[int, int] = {}
        for position, step in enumerate(self.steps):
            made.update((number, position + 1) for number in step.results)
            last.update((number, position) for number in step.reads)
        last.update((number, len(self.steps)) for number in values(self.output))
        return {number: (made[number], last[number]) for number in sorted(last)}

    def last_uses(self, first: int, behind: int, kept: Sequence[int]) -> list[tuple[int, ...]]:
        """Return, for each step of a range, the values that nobody in the range needs after it."""
        later = set(kept)
        uses: list[tuple[int, ...]] = []
        for step in reversed(self.steps[first:behind]):
            touched = step.reads | set(step.results)
            uses.append(tuple(sorted(touched - later)))
            later |= touched
        return uses[::-1]
