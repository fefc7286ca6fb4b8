"""A module as a row of layers, between which it can be cut into stages."""

from collections.abc import Mapping, Set
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from pipekit.layers.module_state import exceptions, in_evaluation
from pipekit.layers.python_state import PythonState
from pipekit.partition.recording.model_input import ModelInput
from pipekit.partition.recording.modules import ModelNames, named_tensors
from pipekit.partition.recording.program import Made, Program, RecordedStep
from pipekit.partition.recording.stage import RecordedStage, StageSteps
from pipekit.partition.recording.templates import named_weights, values

Ranges = tuple[range, range]  # the steps of a layer, in training and in evaluation


class Trial(NamedTuple):
    """A batch of other sizes than any recording had, and these in words: ``8 rows``."""

    sizes: str
    batch: Any


class RecordedModel:
    """A module as a row of layers, each of one block's call and operations around it.

    ``programs``, and the steps of each of the ``layers``, are those in training and in evaluation;
    ``edited`` names tensors that a forward has edited; ``kept`` modules stay in evaluation mode.
    """

    def __init__(
        self,
        model: nn.Module,
        programs: tuple[Program, Program],
        trial: Trial,
        traced: bool,
        edited: Set[str],
    ) -> None:
        self.model, self.programs, self.trial = model, programs, trial
        self.traced, self.edited = traced, edited
        self.kept, self._exceptions = in_evaluation(model), exceptions(model)
        self.attributes = PythonState.of_attributes(model.named_modules())
        self.names = ModelNames(model)
        cuts = _boundaries(*programs, *_tensors(model))
        behind = tuple(len(program.steps) for program in programs)
        self.layers: list[Ranges] = [
            (range(first[0], stop[0]), range(first[1], stop[1]))
            for first, stop in pairwise([(0, 0), *cuts, behind])
        ]

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def frozen(self) -> list[str]:
        """What Python read from tensors, which is held to be as in the example."""
        return list(dict.fromkeys(read for each in self.programs for read in each.frozen))

    def stages(self) -> list[RecordedStage]:
        """Return a stage for each layer, which takes what the one before returns.

        Together they have all names of the unsplit model.
        """
        stages = []
        for number, ranges in enumerate(self.layers):
            training, evaluation = (
                StageSteps.of(program, steps.start, steps.stop)
                for program, steps in zip(self.programs, ranges, strict=True)
            )
            model_input = None if number else ModelInput.of(self.programs[0].batch, self.model)
            stage = RecordedStage(training, evaluation, self._exceptions, model_input)
            steps = (*training.steps, *evaluation.steps)
            modules = dict.fromkeys(step.module for step in steps if step.module is not None)
            weights = [name for step in steps for name in sorted(step.weights)]
            weights += [*named_weights(training.output), *named_weights(evaluation.output)]
            self.names.fill(stage, modules, dict.fromkeys(weights))
            stages.append(stage)
        for home, name in list(self.names.homes(stages)):
            self.names.fill(stages[home], (), [name])
        for stage in stages:
            stage.training = self.model.training  # its modules are the model's, and keep theirs
        return stages

    def steps(self, layer: int) -> tuple[RecordedStep, ...]:
        here = self.layers[layer][0]
        return self.programs[0].steps[here.start : here.stop]

    def crossing(self, layer: int) -> list[Made]:
        """Return what goes from the layers before ``layer`` to it and later ones in training."""
        training = self.programs[0]
        return [training.made[number] for number in training.alive(self.layers[layer][0].start)]


def _tensors(model: nn.Module) -> tuple[dict[str, set[str]], set[str]]:
    """Return the tensors of each module and of each tensor's name, by one name; and the buffers."""
    buffers = dict(model.named_buffers())
    name_of = {tensor: name for name, tensor in (*model.named_parameters(), *buffers.items())}
    held = {
        name: {name_of[tensor] for tensor in (*module.parameters(), *module.buffers())}
        for name, module in model.named_modules(remove_duplicate=False)
    }
    return held | {name: {name_of[t]} for name, t in named_tensors(model)}, {*buffers}


def _boundaries(
    training: Program,
    evaluation: Program,
    tensors: Mapping[str, Set[str]],
    buffers: Set[str],
) -> list[tuple[int, int]]:
    """Return where both programs may be cut: between calls of blocks, where fewest bytes cross."""
    closed, other_closed = (_closed(p, tensors, buffers) for p in (training, evaluation))
    calls, other_calls = training.calls(), evaluation.calls()
    found = []
    done = set[tuple[str, int]]()
    for (call, before), (_, behind) in pairwise(calls.items()):
        done.add(call)
        last_done = max((at for call, at in other_calls.items() if call in done), default=-1)
        todo = (at for call, at in other_calls.items() if call not in done)
        first_todo = min(todo, default=len(evaluation.steps))
        position = _narrowest(training, range(before + 1, behind + 1), closed)
        # Empty if evaluation calls the modules in another order.
        other = _narrowest(evaluation, range(last_done + 1, first_todo + 1), other_closed)
        if position is not None and other is not None:
            found.append((position, other))
    return found


def _narrowest(program: Program, gap: range, closed: set[int]) -> int | None:
    def carried(position: int) -> int:
        return sum(program.made[number].nbytes for number in program.alive(position))

    return min((p for p in gap if p not in closed), key=carried, default=None)


def _closed(program: Program, tensors: Mapping[str, Set[str]], buffers: Set[str]) -> set[int]:
    closed: set[int] = set()
    storage_from = {program.made[number].storage: 0 for number in values(program.batch)}
    users: dict[str, list[int]] = {}
    # What no two stages may both have: nobody keeps copies of these equal.
    edited = set[str]().union(*(step.edited_weights for step in program.steps))
    single = edited | buffers
    # No stage may carry those that the next microbatch edits: they stay with all that read them.
    called = (tensors[step.module] for step in program.steps if step.module is not None)
    fixed = edited.union(*called) & buffers
    home = {
        program.made[number].storage: name
        for step in program.steps
        for name in step.weights & fixed
        for number in step.results
    }
    for position, step in enumerate(program.steps):
        for number in step.results:
            storage_from.setdefault(program.made[number].storage, position + 1)
        for number in step.edits:
            # Whoever shares the edited storage must be in the editor's stage.
            closed |= set(range(storage_from[program.made[number].storage], position + 1))
        read = {home.get(program.made[number].storage, "") for number in step.reads}
        names = step.weights if step.module is None else {*step.weights, step.module}
        for name in single & read.union(*(tensors[name] for name in names)):
            users.setdefault(name, []).append(position)
    for positions in users.values():
        closed |= set(range(positions[0] + 1, positions[-1] + 1))
    needed: set[str] = set()  # sizes of the batch, by this step or a later one
    for position in reversed(range(1, len(program.steps))):
        needed |= program.steps[position].sizes
        if needed - program.size_sources(program.alive(position)).keys():
            closed.add(position)
    return closed
