"""What a forward does, as a row of steps that name the values they read and make."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch

from pipekit.partition.recording.templates import Size, Template, leaves, named_weights, values


class Within(NamedTuple):
    """A tensor of a module within a block that hooks hand on (transformers' router logits, say)."""

    module: str
    call: int  # of the module in that of the block
    place: int  # among the tensors that it returns


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A call of one of the model's blocks, or one operation on tensors, by its function's name."""

    module: str | None = None
    operation: str | None = None
    arguments: Template  # of the pair (positional, keyword)
    results: tuple[int, ...] = ()  # the values' numbers of all tensors that it returns, in order
    within: tuple[Within, ...] = ()  # where modules in the called one gave the last of them
    edits: frozenset[int] = frozenset()  # values that are changed in place
    edited_weights: frozenset[str] = frozenset()  # and parameters and buffers
    grad: bool = True  # whether gradients are tracked, as outside torch.no_grad()
    autocast: tuple[str, torch.dtype | None, bool, bool] | None = None  # torch.autocast's arguments
    random: bool = False  # whether random numbers are drawn
    held: bool | int | float | None = None  # what Python read in the example, and is held to read
    place: str = ""  # file:line of the call

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.grad and self.autocast is None:
            return function(*args, **kwargs)
        grad = nullcontext() if self.grad else torch.no_grad()
        with grad, torch.autocast(*self.autocast) if self.autocast else nullcontext():
            return function(*args, **kwargs)

    @property
    def reads(self) -> frozenset[int]:
        """The numbers of the values that the step takes."""
        return frozenset(values(self.arguments))

    @property
    def weights(self) -> frozenset[str]:
        return frozenset(named_weights(self.arguments))

    @property
    def sizes(self) -> frozenset[str]:
        """The names of the batch's sizes on which the arguments depend."""
        counts = (leaf for leaf in leaves(self.arguments) if isinstance(leaf, Size))
        return frozenset(name for count in counts for name in count.names)

    @property
    def title(self) -> str:
        """What the step calls, for messages."""
        return self.module or f"{self.operation} at {self.place}"


class Growth(NamedTuple):
    """How long a dimension is: ``times`` a size of the batch, and ``plus``."""

    size: str
    times: int
    plus: int = 0

    def __str__(self) -> str:
        """Return it for messages: ``rows``, or ``2 length + 1``."""
        times = "" if self.times == 1 else f"{self.times} "
        return f"{times}{self.size}{f' + {self.plus}' if self.plus else ''}"

    def size_at(self, length: int) -> int:
        return (length - self.plus) // self.times

    def length_at(self, size: int) -> int:
        return self.times * size + self.plus


SizeSource = tuple[int, int, Growth]
"""Where a stage reads a size of the batch: a value, its dimension, and how that grows."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A value as it is in the example; those of one ``storage`` share their numbers, as views."""

    source: str  # a module's name, an operation with its place, or "the batch"
    shape: tuple[int, ...]
    grows: tuple[Growth | None, ...] = ()  # None: constant, or it depends on sizes in another way
    nbytes: int
    requires_grad: bool = False
    storage: int


@dataclass(frozen=True, kw_only=True)
class Program:
    """A recorded forward, in one mode; one recording by itself knows of no sizes and limits."""

    batch: Template  # its tensors are values
    steps: tuple[RecordedStep, ...]  # in the order in which they ran
    output: Template
    made: Mapping[int, Made]  # every value, by number
    frozen: tuple[str, ...] = ()  # what Python read, which is held to be as in the example
    compared: tuple[str, ...] = ()  # comparisons of lengths of values that were true, each once
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the example, by name
    limits: tuple[Size, ...] = ()  # what must hold for the sizes of a batch

    def without_dead_steps(self) -> Self:
        """Return the program without operations that change nothing and that nobody reads."""
        needed = set(values(self.output))
        kept = []
        for step in reversed(self.steps):
            acts = step.module or step.random or step.edits or step.edited_weights
            if acts or step.held is not None or not needed.isdisjoint(step.results):
                needed |= step.reads
                kept.append(step)
        return replace(self, steps=tuple(reversed(kept)))

    def calls(self) -> dict[tuple[str, int], int]:
        """Return the position of every call of a module: of its name, and how often before."""
        before = Counter[str]()
        positions: dict[tuple[str, int], int] = {}
        for position, step in enumerate(self.steps):
            if step.module is not None:
                positions[step.module, before[step.module]] = position
                before[step.module] += 1
        return positions

    def alive(self, cut: int) -> tuple[int, ...]:
        """Return the values, in their order, that a cut before step ``cut`` carries."""
        return tuple(n for n, (made, read) in self._lives.items() if made <= cut <= read)

    def size_sources(self, carried: Iterable[int]) -> dict[str, SizeSource]:
        """Return where each size of the batch, by name, can be read among the values of a stage."""
        found: dict[str, SizeSource] = {}
        for number in carried:
            for dimension, growth in enumerate(self.made[number].grows):
                if growth is not None:
                    found.setdefault(growth.size, (number, dimension, growth))
        return found

    @cached_property
    def _lives(self) -> dict[int, tuple[int, int]]:
        """By value: the step before which it is there, and the last to read it, or one behind."""
        made = dict.fromkeys(values(self.batch), 0)
        last: dict[int, int] = {}
        for position, step in enumerate(self.steps):
            made.update((number, position + 1) for number in step.results)
            last.update((number, position) for number in step.reads)
        last.update((number, len(self.steps)) for number in values(self.output))
        return {number: (made[number], last[number]) for number in sorted(last)}
