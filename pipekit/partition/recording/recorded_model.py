"""A module as a row of layers, between which it can be cut into stages."""

import copy
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, Self

from torch import nn

from pipekit.layers.module_state import exceptions, in_evaluation
from pipekit.partition.recording.model_input import ModelInput
from pipekit.partition.recording.names import ModelNames
from pipekit.partition.recording.program import Program, RecordedStep
from pipekit.partition.recording.stage import RecordedStage, StageSteps
from pipekit.partition.recording.templates import values


class Crossing(NamedTuple):
    """A tensor that goes from a layer to later ones, as it is in the example.

    ``source`` makes it: a module's name, an operation with its place, or "the batch".
    """

    source: str
    shape: tuple[int, ...]
    nbytes: int
    requires_grad: bool


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


class Trial(NamedTuple):
    """A batch with which a recorded model is compared with the unsplit one.

    Attributes:
        sizes: what it is called in messages: ``8 rows``.
        batch: of other sizes than any with which the model was recorded.
    """

    sizes: str
    batch: Any


class CutPlace(NamedTuple):
    """Positions before which both programs may be cut together: in training, in evaluation."""

    training: int
    evaluation: int


class RecordedModel:
    """A module as a row of layers, each of one block's call and operations around it.

    Args:
        model: the unsplit model; its modules and tensors are used, not copied.
        training, evaluation: its programs.
        trial: what it is to be verified with.
        frozen: what Python read from tensors, which is held to be as in the example.

    Attributes:
        model, training, evaluation, trial, frozen: as given.
        kept: the modules that stay in evaluation mode.
        boundaries: where the model may be cut, one fewer than there are layers.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Program,
        evaluation: Program,
        *,
        trial: Trial,
        frozen: Sequence[str] = (),
    ) -> None:
        self.model, self.training, self.evaluation = model, training, evaluation
        self.trial, self.frozen = trial, tuple(frozen)
        self.kept, self._exceptions = in_evaluation(model), exceptions(model)
        self._names = ModelNames(model)
        self.boundaries = boundaries(training, evaluation, *_tensors(model))

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.boundaries) + 1

    @property
    def rows(self) -> int:
        """How many rows the example had."""
        return self.training.sizes["rows"]

    @property
    def ties(self) -> list[list[str]]:
        """The names of each parameter that has several."""
        return self._names.aliases()

    @property
    def _ranges(self) -> list[tuple[CutPlace, CutPlace]]:
        """The first step of each layer, and the step behind its last, in both programs."""
        behind = CutPlace(len(self.training.steps), len(self.evaluation.steps))
        return list(pairwise([CutPlace(0, 0), *self.boundaries, behind]))

    def stages(self, balance: Sequence[int]) -> list[RecordedStage]:
        """Return stages of so many layers each, one after another.

        Each takes what the one before returns, and has the names of the unsplit model; together
        they have all of them.

        Raises:
            ValueError: the numbers do not sum to the number of layers, or one is below 1.
        """
        if sum(balance) != len(self) or any(count < 1 for count in balance):
            raise ValueError(
                f"balance {list(balance)} must sum to {len(self)}, the number of layers, with at "
                f"least one in every stage"
            )
        stages = []
        for first, behind in pairwise([0, *accumulate(balance)]):
            begin, stop = self._ranges[first][0], self._ranges[behind - 1][1]
            stage = RecordedStage(
                StageSteps.of(self.training, begin.training, stop.training),
                StageSteps.of(self.evaluation, begin.evaluation, stop.evaluation),
                self._exceptions,
                None if first else ModelInput.of(self.training.batch, self.model),
            )
            steps = [
                *self.training.steps[begin.training : stop.training],
                *self.evaluation.steps[begin.evaluation : stop.evaluation],
            ]
            modules = dict.fromkeys(step.module for step in steps if step.module is not None)
            weights = dict.fromkeys(name for step in steps for name in sorted(step.weights))
            self._names.fill(stage, modules, weights)
            stages.append(stage)
        for home, name in list(self._names.homes(stages)):
            self._names.fill(stages[home], (), [name])
        for stage in stages:
            stage.training = self.model.training  # its modules are the model's, and keep theirs
        return stages

    def steps(self, layer: int) -> tuple[RecordedStep, ...]:
        """Return what a layer does in training."""
        first, behind = self._ranges[layer]
        return self.training.steps[first.training : behind.training]

    def crossing(self, layer: int) -> list[Crossing]:
        """Return what goes from the layers before ``layer`` to it and later ones in training."""
        source_of = {number: step.title for step in self.training.steps for number in step.results}
        made = self.training.made
        return [
            Crossing(
                source_of.get(number, "the batch"),
                made[number].shape,
                made[number].nbytes,
                made[number].requires_grad,
            )
            for number in self.training.alive(self.boundaries[layer - 1].training)
        ]

    def passed_values(self) -> tuple[Passed, ...]:
        """Return the values that some layer reads and does not make, as they are made."""
        stops = [behind.training for _, behind in self._ranges]
        source: dict[int, int | None] = dict.fromkeys(values(self.training.batch))
        users: dict[int, set[int]] = {}
        for position, step in enumerate(self.training.steps):
            layer = bisect_right(stops, position)
            for number in step.reads:
                users.setdefault(number, set()).add(layer)
            source.update((number, layer) for number in step.results)
        for number in values(self.training.output):
            users.setdefault(number, set()).add(len(stops) - 1)
        found = (
            Passed(number, made, tuple(sorted(users.get(number, set()) - {made})))
            for number, made in source.items()
        )
        return tuple(passed for passed in found if passed.users)

    def in_order(self, order: Sequence[int]) -> Self:
        """Return the model with its layers in another order: layer ``order[0]`` first.

        Whether they can run in it, and do the same, is for :func:`pipekit.partition.verify.verify`
        to find out: gradients of a value that three layers read are summed in the order of these.
        """
        ranges = [self._ranges[layer] for layer in order]
        training = [(first.training, behind.training) for first, behind in ranges]
        evaluation = [(first.evaluation, behind.evaluation) for first, behind in ranges]
        made = copy.copy(self)
        made.training = _joined(self.training, training)
        made.evaluation = _joined(self.evaluation, evaluation)
        lengths = zip(_lengths(training), _lengths(evaluation), strict=True)
        made.boundaries = [CutPlace(*places) for places in lengths][:-1]
        return made


def _joined(program: Program, runs: Sequence[tuple[int, int]]) -> Program:
    """Return a program with runs of its steps one after another."""
    steps = chain.from_iterable(program.steps[first:stop] for first, stop in runs)
    return replace(program, steps=tuple(steps))


def _lengths(runs: Sequence[tuple[int, int]]) -> list[int]:
    return list(accumulate(stop - first for first, stop in runs))


def _tensors(model: nn.Module) -> tuple[dict[str, set[str]], set[str]]:
    """Return what each module and each tensor has, by one name of each; and which are buffers."""
    buffers = dict(model.named_buffers())
    name_of = {tensor: name for name, tensor in (*model.named_parameters(), *buffers.items())}
    held = {
        name: {name_of[tensor] for tensor in (*module.parameters(), *module.buffers())}
        for name, module in model.named_modules(remove_duplicate=False)
    }
    every = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return held | {name: {name_of[tensor]} for name, tensor in every}, {*buffers}


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
        if needed - program.size_sources(program.alive(position)).keys():
            closed.add(position)
    return closed


def _held(step: RecordedStep, tensors: Mapping[str, Set[str]]) -> set[str]:
    """Return the parameters and buffers that a step uses."""
    names = step.weights if step.module is None else {*step.weights, step.module}
    return set().union(*(tensors[name] for name in names))
