"""A recorded module as a row of layers, each of which may begin a stage."""

from collections.abc import Iterable, Mapping, Set
from itertools import pairwise
from typing import Any, NamedTuple, Self

import pandas as pd
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from pipekit.layers.module_state import exceptions, in_evaluation
from pipekit.layers.python_state import PythonState
from pipekit.partition.recording.model_input import ModelInput
from pipekit.partition.recording.modules import ModelNames, named_tensors
from pipekit.partition.recording.program import Made, Program, RecordedStep
from pipekit.partition.recording.stage import RecordedStage, StageSteps, span
from pipekit.partition.recording.templates import named_weights, values
from pipekit.partition.recording.unify import ROWS
from pipekit.units import bytes_text

_TRACED = (
    "recorded as under tracing: masks are applied where they hide nothing, too, by kernels that "
    "may round otherwise than the model's without a mask",
)

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
        stages, names = [], ModelNames(self.model)
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
            names.fill(stage, modules, dict.fromkeys(weights))
            stages.append(stage)
        for home, name in list(names.homes(stages)):
            names.fill(stages[home], (), [name])
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


class RecordedSequence(nn.Sequential):
    """The layers of a recorded model, in order: any consecutive ones make a stage.

    ``state_dict()`` has the unsplit model's names.  ``print`` shows the layers as a table.
    """

    table: pd.DataFrame | None = None  # a row a layer; None of a part of a sequence
    remarks: tuple[str, ...] = ()  # what else is known of the layers together
    origin: RecordedModel | None = None  # None of a part or a copy

    @classmethod
    def of(cls, recorded: RecordedModel) -> Self:
        """Return the layers of a recorded model."""
        layers, rows = recorded.stages(), recorded.programs[0].sizes[ROWS]
        sequence = cls(*layers)
        sequence.origin = recorded
        sequence.table = _table(recorded, layers)
        sequence.remarks = (
            f"{len(layers)} layers; bytes that cross are those of {rows} rows; outputs, "
            f"buffers and all gradients equal the unsplit model's, with {recorded.trial.sizes}",
            *_TRACED * recorded.traced,
            *(f"held to be as in the example: {read}" for read in recorded.frozen),
        )
        return sequence

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recorded model, whose tensors a copy does not have."""
        return self.__dict__ | {"origin": None}

    def __repr__(self) -> str:
        if self.table is None:
            return super().__repr__()
        return "\n".join([self.table.to_string(max_colwidth=60), *self.remarks])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load tensors by the unsplit model's names; ValueError of a wrong one with ``strict``."""
        names = self.state_dict().keys()
        if strict and names != state_dict.keys():
            wrong = sorted(names ^ state_dict.keys())
            raise ValueError(f"the model and the state differ in names, first in {wrong[0]!r}")
        for layer in self:
            own = {name: state_dict[name] for name in layer.state_dict() if name in state_dict}
            layer.load_state_dict(own, strict=strict, assign=assign)
        return _IncompatibleKeys(
            sorted(names - state_dict.keys()), sorted(state_dict.keys() - names)
        )


def _table(recorded: RecordedModel, layers: Iterable[RecordedStage]) -> pd.DataFrame:
    rows = []
    for number, layer in enumerate(layers):
        steps = recorded.steps(number)
        crossing = recorded.crossing(number + 1) if number + 1 < len(recorded) else []
        size = bytes_text(sum(each.nbytes for each in crossing))
        row = {
            "modules": span(layer),
            "operations": sum(step.operation is not None for step in steps),
            "parameters": sum(p.numel() for p in layer.parameters()),
            "MB": round(sum(p.nbytes for p in layer.parameters()) / 1e6, 3),
            "random": "yes" if any(step.random for step in steps) else "",
            "buffers": len(list(layer.buffers())) or "",
            "crosses behind": f"{size}: {', '.join(each.source for each in crossing)}",
        }
        rows.append(row if crossing else row | {"crosses behind": ""})
    return pd.DataFrame(rows)


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
