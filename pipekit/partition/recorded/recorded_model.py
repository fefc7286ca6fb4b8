"""A module as a row of layers, between which it can be cut into stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from torch import nn

from pipekit.layers.modes import exceptions, in_evaluation
from pipekit.partition.recorded.boundaries import Boundary, boundaries
from pipekit.partition.recorded.model_input import ModelInput
from pipekit.partition.recorded.part import Part
from pipekit.partition.recorded.stage import Names, RecordedStage
from pipekit.partition.recording.program import Program, Step


@dataclass(frozen=True)
class Crossing:
    """A tensor that goes from a layer to later ones.

    Attributes:
        source: what makes it: a module's name, an operation with its place, or "the batch".
        shape: in the example.
        nbytes: in the example.
        requires_grad: whether a gradient comes back for it.
    """

    source: str
    shape: tuple[int, ...]
    nbytes: int
    requires_grad: bool


class Trial(NamedTuple):
    """A batch with which a recorded model is compared with the unsplit one.

    Attributes:
        sizes: what it is called in messages: ``8 rows``.
        batch: of other sizes than any with which the model was recorded.
    """

    sizes: str
    batch: Any


class RecordedModel:
    """A module as a row of layers, each of one block's call and operations around it.

    Args:
        model: the unsplit model; its modules and tensors are used, not copied.
        training, evaluation: its programs.
        rows: of the example.
        trials: what it is to be verified with.
        frozen: what Python read from tensors, which is held to be as in the example.
        advice: what to do if it is not the unsplit model.

    Attributes:
        model, training, evaluation, rows, trials, frozen, advice: as given.
        kept: the modules that stay in evaluation mode.
        boundaries: where the model may be cut, one fewer than there are layers.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Program,
        evaluation: Program,
        rows: int,
        trials: Sequence[Trial],
        frozen: Sequence[str] = (),
        advice: str = "",
    ) -> None:
        self.model, self.training, self.evaluation = model, training, evaluation
        self.rows, self.trials, self.frozen = rows, tuple(trials), tuple(frozen)
        self.advice = advice
        self.kept, self._exceptions = in_evaluation(model), exceptions(model)
        self._names = Names(model)
        self.boundaries = boundaries(training, evaluation, *_tensors(model))

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.boundaries) + 1

    @property
    def ties(self) -> list[list[str]]:
        """The names of each parameter that has several."""
        return self._names.aliases()

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
        ends = [Boundary(0, 0), *self.boundaries]
        ends.append(Boundary(len(self.training.steps), len(self.evaluation.steps)))
        stages = []
        for first, behind in pairwise([0, *accumulate(balance)]):
            begin, end = ends[first], ends[behind]
            stage = RecordedStage(
                Part.of(self.training, begin.training, end.training),
                Part.of(self.evaluation, begin.evaluation, end.evaluation),
                self._exceptions,
                None if first else ModelInput.of(self.training.batch, self.model),
            )
            steps = [
                *self.training.steps[begin.training : end.training],
                *self.evaluation.steps[begin.evaluation : end.evaluation],
            ]
            modules = dict.fromkeys(step.module for step in steps if step.module is not None)
            weights = dict.fromkeys(name for step in steps for name in sorted(step.weights))
            self._names.fill(stage, modules, weights)
            stages.append(stage)
        for home, name in list(self._names.homes(list(stages))):
            self._names.fill(stages[home], (), [name])
        for stage in stages:
            stage.training = self.model.training  # its modules are the model's, and keep theirs
        return stages

    def steps(self, layer: int) -> tuple[Step, ...]:
        """Return what a layer does in training."""
        ends = [0, *(b.training for b in self.boundaries), len(self.training.steps)]
        return self.training.steps[ends[layer] : ends[layer + 1]]

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
