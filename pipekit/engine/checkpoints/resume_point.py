"""A run that was interrupted, as a checkpoint tells, and where the next one takes it up."""

import copy
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Self

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipekit.engine.checkpoints.files import Content, PartFile, load, parts_of
from pipekit.engine.config import Start
from pipekit.engine.execution.stage import StageConfig
from pipekit.engine.updates.all_reduce import merged
from pipekit.host.user_frames import warn
from pipekit.layers.module_state import named_buffers, set_buffers
from pipekit.partition.recording.stage import extra_states, set_extra_states
from pipekit.schedules import Schedule
from pipekit.schedules.lowering.boundaries import Boundary

Tensors = dict[str, Tensor]

# Tensors are what they are; the rest is taken strictly.
_ANY_TYPES = ConfigDict(arbitrary_types_allowed=True)


@with_config(_ANY_TYPES)
class About(TypedDict):
    """What all parts of a checkpoint have in common."""

    runs: int
    batches: int
    offset: int
    microbatches: int
    table: str
    balance: list[int]
    planned: NotRequired[int]  # batches of the run, with those after the checkpoint
    rng: Tensor
    training: str
    attempt: str


@with_config(_ANY_TYPES)
class PartContent(TypedDict):
    """One worker's part of a checkpoint, of one stage."""

    format: int
    about: About
    boundary: tuple[int, int, tuple[int, ...]]
    stage: int
    worker: int
    parameters: Tensors
    older: dict[int, Tensors]
    buffers: Tensors
    extra_states: dict[str, Any]
    state: dict[str, Any]
    losses: list[tuple[int, float]]


def read_part(part: PartFile) -> Content:
    """Return a file's content; ValueError: it is not a part of its folder's checkpoint."""
    content = load(part)
    try:
        TypeAdapter(PartContent).validate_python(content, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise ValueError(
            f"{part.path} is not a part of a checkpoint: {where}: {wrong['msg']}"
        ) from None
    about = content["about"]
    folder = f"batch-{about['batches'] + content['boundary'][0]:08d}-{about['attempt']}"
    said = content["stage"], content["worker"], folder
    if said != (part.stage, part.worker, part.path.parent.name):
        raise ValueError(
            f"{part.path} was written as stage {said[0]} of worker {said[1]} in {folder}: files of "
            f"different checkpoints have been mixed"
        )
    return content


class Position(NamedTuple):
    """How far a training has come: whole runs, and their batches and microbatches."""

    runs: int = 0
    batches: int = 0
    microbatches: int = 0


@dataclass(frozen=True)
class ResumePoint:
    """What a checkpoint says."""

    checkpoint: Path
    about: dict[str, Any]  # what is common to its parts
    boundary: Boundary  # after which it was written
    # Each one's first worker's part, less older weights, with all its workers' running statistics.
    stages: list[Content]
    losses: list[tuple[int, float]]  # of the microbatches of the run before the boundary

    @classmethod
    def read(cls, home: Path) -> Self:
        """Read a complete checkpoint; a ValueError names a file that is not one of its parts."""
        stages: list[Content] = []
        losses: list[tuple[int, float]] = []
        first: dict[str, Any] = {}
        buffers: dict[int, list[Tensors]] = defaultdict(list)
        for part in parts_of(home):
            content = read_part(part)
            about = {**content["about"], "rng": content["about"]["rng"].tolist()}
            about["boundary"] = content["boundary"]
            first = first or about
            if about != first:
                raise ValueError(
                    f"{part.path} is of another training or run than the files beside it: files of "
                    f"different checkpoints have been mixed"
                )
            losses += content["losses"]
            buffers[part.stage].append(content["buffers"])
            if part.stage == len(stages):
                del content["older"]
                stages.append(content)
        if not stages or len(stages) != len(first["balance"]):
            raise ValueError(f"{home} lacks parts: there is none of stage {len(stages)}")
        for index, stage in enumerate(stages):
            stage["buffers"] = merged(buffers[index])
        return cls(home, stages[0]["about"], Boundary(*stages[0]["boundary"]), stages, losses)

    @property
    def position(self) -> Position:
        batches = self.about["batches"] - self.about["offset"]
        return Position(self.about["runs"], batches, self.about["microbatches"])

    def load_into(self, modules: Sequence[nn.Module]) -> None:
        """Give modules' layers what was saved, once; ValueError: they are of another model."""
        saved, extra = Tensors(), dict[str, Any]()
        for stage in self.stages:
            saved |= stage["parameters"] | stage["buffers"]
            extra |= stage["extra_states"]
        parameters, buffers, unknown = Tensors(), set[str](), {*extra}
        for module in modules:
            parameters |= module.named_parameters(remove_duplicate=False)
            buffers |= named_buffers(module).keys()
            unknown -= extra_states(module).keys()
        for name in sorted({*saved, *parameters, *buffers, *unknown}):
            # A layer may replace a buffer by one of another shape.
            here = saved.get(name) if name in buffers else parameters.get(name)
            if name not in saved or here is None or here.shape != saved[name].shape:
                raise ValueError(
                    f"{self.checkpoint} is of another model: there or here {name!r} is missing or "
                    f"of another shape; build the model of the saved run"
                )
            if here.dtype != saved[name].dtype:
                raise ValueError(
                    f"{self.checkpoint} has {name!r} in {saved[name].dtype}, and this model in "
                    f"{here.dtype}: build the model of the saved run, say by "
                    f"model.to({saved[name].dtype})"
                )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])
                parameter.grad = None
        for module in modules:
            set_buffers(module, {name: saved[name] for name in named_buffers(module)})
            set_extra_states(module, extra)
        for stage in self.stages:  # not to lie in memory twice while the training goes on
            stage["parameters"], stage["buffers"] = {}, {}

    def state_for(self, config: StageConfig) -> dict[str, Any]:
        """Return what a stage's optimizer and scheduler go on from.

        The optimizer's state goes with the parameters; the rest is of the saved stage that had most
        of the stage's layers.
        """
        optimizers = [stage["state"]["optimizer"] or {} for stage in self.stages]
        part = config.passes.part
        layers = range(part.first_layer, part.first_layer + len(part.module))
        stops = itertools.accumulate(self.about["balance"])
        shared = [
            len(range(max(layers.start, stop - count), min(layers.stop, stop))) * bool(optimizer)
            for stop, count, optimizer in zip(stops, self.about["balance"], optimizers, strict=True)
        ]
        donor: dict[str, Any] = self.stages[shared.index(max(shared))]["state"]
        names = {name for name, _ in part.module.named_parameters()}
        ours = {name: each[name] for each in optimizers for name in each if name in names}
        if None in part.numbers:  # weights that an earlier stage has as well
            ours = copy.deepcopy(ours)
        found = donor | {"optimizer": ours or None, "resumed": True}
        if "mitigation" in donor:
            kept = (stage["state"]["mitigation"]["memory"] for stage in self.stages)
            found["mitigation"] = {
                **donor["mitigation"],
                "memory": {name: each for memory in kept for name, each in memory.items()},
            }
        return found

    def start(
        self, batches: int, schedule_for: Callable[[int], Schedule], balance: Sequence[int] | None
    ) -> Start:
        """Return where the run is taken up: after the boundary.

        With the saved run's table the pipeline is as full as it was, with another one empty.  A
        ValueError says that the run has fewer batches than have been trained on.
        """
        offset = self.about["offset"]
        done = offset + self.boundary.batches
        if batches < done:
            raise ValueError(
                f"{self.checkpoint} was written after {done} batches of a run, and this one has "
                f"{batches}: pass all batches of the interrupted run, those before it too"
            )
        schedule = schedule_for(batches - offset)
        microbatches = self.about["microbatches"]
        same = table_id(schedule, balance) == self.about["table"]
        if batches == done < self.about.get("planned", done):
            warn(
                f"nothing is trained: {self.checkpoint} was written after {done} batches of a run, "
                f"and this one has no more: pass all batches of that run, those before it too"
            )
        if same or batches == done:
            resumed = self.boundary, self.checkpoint, self.losses if same else ()
            return Start(schedule, offset, microbatches, *resumed)
        microbatches += self.boundary.microbatches
        return Start(schedule_for(batches - done), done, microbatches)


def table_id(schedule: Schedule, balance: Sequence[int] | None) -> str:
    """Return what two runs have in common that execute the same tasks on the same layers."""
    return hashlib.sha256(f"{schedule.to_csv()}{balance}".encode()).hexdigest()
