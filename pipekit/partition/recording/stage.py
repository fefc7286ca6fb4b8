"""A stage of a recorded model: a module with the names of the unsplit one."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pipekit.host.user_frames import warn
from pipekit.layers.module_state import named_generators
from pipekit.partition.recording.model_input import ModelInput, matched
from pipekit.partition.recording.operators import function
from pipekit.partition.recording.program import Growth, Program, RecordedStep, SizeSource, Within
from pipekit.partition.recording.templates import (
    Constant,
    NamedWeight,
    Size,
    StageDevice,
    Template,
    Value,
    map_leaves,
    tensors,
    values,
)
from pipekit.trees import Tree

_LOOKS = 100  # microbatches in which what Python read from tensors is compared with the example's


@dataclass(frozen=True, kw_only=True)
class StageSteps:
    """Steps that run one after another, and how values come in and go out."""

    steps: tuple[RecordedStep, ...]
    frees: Sequence[Sequence[int]]  # after each step, values that nothing needs any more
    batch: Template  # for the part that is given it
    shapes: dict[int, tuple[int | Growth, ...]]  # of the batch's tensors
    takes: tuple[tuple[int, bool], ...]  # what comes in, and whether gradients flow through it
    gives: tuple[int, ...]  # what goes out, for all parts but the last
    output: Template  # for the last part
    sizes: dict[str, SizeSource]  # of the batch, on which steps depend
    limits: tuple[Size, ...]  # what must hold for the batch's sizes
    looked_at: dict[str, int] = field(default_factory=dict)  # how often what is held was compared

    @classmethod
    def of(cls, program: Program, first: int, behind: int) -> Self:
        """Return the part of ``program`` from step ``first`` to ``behind`` - 1."""
        steps, carried = program.steps[first:behind], program.alive(first)
        is_first, is_last = first == 0, behind == len(program.steps)
        given = {*(values(program.output) if is_last else program.alive(behind))}
        last = {n: place for place, step in enumerate(steps) for n in (*step.results, *step.reads)}
        frees: list[list[int]] = [[] for _ in steps]
        for number in last.keys() - given:
            frees[last[number]].append(number)
        shapes = {}
        for number in values(program.batch) if is_first else ():
            made = program.made[number]
            dimensions = zip(made.grows, made.shape, strict=True)
            shapes[number] = tuple(growth or length for growth, length in dimensions)
        needed = {name for step in steps for name in step.sizes}
        sources = program.size_sources(shapes if is_first else carried)
        return cls(
            steps=steps,
            frees=frees,
            batch=program.batch if is_first else None,
            shapes=shapes,
            takes=tuple((number, program.made[number].requires_grad) for number in carried),
            gives=() if is_last else program.alive(behind),
            output=program.output if is_last else None,
            sizes={name: sources[name] for name in sorted(needed)},
            limits=program.limits if is_first else (),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: copies of a stage, as of its weight versions, do the same."""
        return self

    def run(self, modules: nn.Module, tree: Tree) -> Tree:
        """Return what the part gives; ``modules`` has the steps' modules and weights by name."""
        if self.batch is not None:
            env = dict(matched(self.batch, tree))
            self._require_shapes(env)
        else:
            # What had no gradient in the whole model gets none here: kernels are chosen by that.
            given = (tree,) if isinstance(tree, Tensor) else tree
            env = {
                number: value if flows else value.detach()
                for (number, flows), value in zip(self.takes, given, strict=True)
            }
        device = next((t.device for t in env.values()), torch.device("cpu"))
        sizes = {
            name: growth.size_at(env[value].shape[dimension])
            for name, (value, dimension, growth) in self.sizes.items()
        }

        def resolve(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return env[leaf.number]
            if isinstance(leaf, NamedWeight):
                return attrgetter(leaf.name)(modules)
            if isinstance(leaf, Constant):
                return leaf.tensor.to(device)
            if isinstance(leaf, Size):
                return leaf.at(sizes)
            return device if isinstance(leaf, StageDevice) else leaf

        for step, freed in zip(self.steps, self.frees, strict=True):
            args, kwargs = map_leaves(resolve, step.arguments)
            name = step.operation
            call = modules.get_submodule(step.module or "") if name is None else function(name)
            made: list[Tensor] = []
            if step.held is not None:
                self._look_at(step, partial(step.run, call, *args, **kwargs))
            else:
                with ExitStack() as hooks:
                    taken = _taken_within(modules, step, hooks)
                    made = tensors(step.run(call, *args, **kwargs))
                made += [taken[within] for within in step.within]
            env.update(zip(step.results, made, strict=True))
            del args, kwargs, made  # which would keep values alive
            for number in freed:
                env.pop(number, None)
        if self.output is not None:
            return map_leaves(resolve, self.output)
        if len(self.gives) == 1:
            return env[self.gives[0]]
        return tuple(env[number] for number in self.gives)

    def _look_at(self, step: RecordedStep, read: Callable[[], Any]) -> None:
        """Warn if one of the first microbatches is not as the example was held to be."""
        self.looked_at[step.place] = self.looked_at.get(step.place, 0) + 1
        if self.looked_at[step.place] <= _LOOKS and (found := read()) != step.held:
            warn(
                f"{step.place}: Python read {step.held} in the example of pipekit.stages, with "
                f"freeze=True, and reads {found} in this batch, for which stages still do what the "
                f"model did then: give an example like your batches, a padded one if they are"
            )

    def _require_shapes(self, batch: Mapping[int, Tensor]) -> None:
        sizes: dict[str, int] = {}
        for number, shape in self.shapes.items():
            found = tuple(batch[number].shape)
            wanted = [
                known
                if isinstance(known, int)
                else known.length_at(sizes.setdefault(known.size, known.size_at(length)))
                for known, length in zip(shape, found, strict=False)
            ]
            if len(found) != len(shape) or wanted != [*found]:
                raise ValueError(
                    f"the model was recorded for tensors [{', '.join(map(str, shape))}] and the "
                    f"batch has {list(found)}: pad the batches to one size, or give an "
                    f"example of theirs"
                )
        for limit in self.limits:
            if not limit.at(sizes):
                here = ", ".join(f"{name} = {sizes[name]}" for name in limit.names)
                raise ValueError(
                    f"the model was recorded for batches with {limit.expression}, and this one has "
                    f"{here}: pad it, or give an example of its sizes"
                )


def _taken_within(modules: nn.Module, step: RecordedStep, hooks: ExitStack) -> dict[Within, Tensor]:
    """Return what will hold, up to the end of ``hooks``, what modules within a step's return."""
    taken: dict[Within, Tensor] = {}
    calls = Counter[str]()

    def take(name: str, module: nn.Module, args: Any, output: Any) -> None:
        taken.update((Within(name, calls[name], n), t) for n, t in enumerate(tensors(output)))
        calls[name] += 1

    for name in {within.module for within in step.within}:
        module = modules.get_submodule(name)
        hooks.enter_context(module.register_forward_hook(partial(take, name)))
    return taken


class RecordedStage(nn.Module):
    """Some of a model's modules, under their names there, and the operations between them.

    ``exceptions``: by mode, the names of modules that the model leaves in the other one then.
    ``model_input``: what the model takes of a batch; None for all stages but the first.
    """

    sets_modes_alone = True  # its train(): see merged_put_back

    def __init__(
        self,
        training: StageSteps,
        evaluation: StageSteps,
        exceptions: Mapping[bool, Sequence[str]],
        model_input: ModelInput | None,
    ) -> None:
        super().__init__()
        self.model_input = model_input
        self._recorded_parts = (evaluation, training)
        self._exceptions = exceptions

    def forward(self, tree: Tree) -> Tree:
        """Return the tensors that the next stage takes; the last one returns the model's output."""
        return self._recorded_parts[self.training].run(self, tree)

    def train(self, mode: bool = True) -> Self:
        """Put the stage into training or evaluation mode, as the unsplit model does its modules."""
        super().train(mode)
        named = dict(self.named_modules(remove_duplicate=False))
        for name in self._exceptions[mode]:
            if name in named:
                named[name].training = not mode
        return self

    def state_dict(self, *args: Any, prefix: str = "", **options: Any) -> Any:
        """Return the tensors under their names in the unsplit model, wherever the stage stands."""
        return super().state_dict(*args, **options)

    def _get_name(self) -> str:
        return span(self)

    def extra_repr(self) -> str:
        steps = self._recorded_parts[1].steps
        return f"{sum(step.operation is not None for step in steps)} recorded operations"


def input_of(model: nn.Sequential, batch: Any) -> Tree:
    """Return what a model takes of a batch: of a dict, if it is recorded, no more than it knows."""
    first = model[0]
    batch = dict(batch) if isinstance(batch, Mapping) else batch
    if not isinstance(first, RecordedStage) or first.model_input is None:
        return batch
    taken = first.model_input.select(batch) if isinstance(batch, dict) else batch
    return first.model_input.tensors_of(taken)


def called(stage: RecordedStage) -> tuple[str, ...]:
    """Return the names of the modules that a stage calls in training."""
    steps = stage._recorded_parts[1].steps
    return tuple(dict.fromkeys(s.module for s in steps if s.module is not None))


def span(stage: RecordedStage) -> str:
    """Return these names in short: of more than two the first and the last."""
    names = called(stage)
    if len(names) > 2:
        return f"{names[0]} ... {names[-1]}"
    return ", ".join(names) or "operations"


def owners(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules within one that have extra state, by its names in ``state_dict()``."""
    if isinstance(module, RecordedStage):  # has the unsplit model's names wherever it stands
        prefix = ""
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        yield f"{prefix}_extra_state", module
    for name, child in module._modules.items():
        if child is not None:
            yield from owners(child, f"{prefix}{name}.")


def extra_states(module: nn.Module) -> dict[str, Any]:
    """Return copies, on the CPU, of extra states and of states of modules' generators, by name."""
    own = {name: copied_entry(owner.get_extra_state()) for name, owner in owners(module)}
    return own | {name: each.get_state() for name, each in named_generators(module).items()}


def set_extra_states(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Give the modules within one what :func:`extra_states` returns, as far as ``state`` has it."""
    for name, owner in owners(module):
        if name in state:
            owner.set_extra_state(copy.deepcopy(state[name]))
    for name, generator in named_generators(module).items():
        if name in state:
            generator.set_state(state[name])


def require_taken(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise ValueError if a module gives an extra state that is in ``state``, and takes none."""
    for name, owner in owners(module):
        if name in state and type(owner).set_extra_state is nn.Module.set_extra_state:
            raise ValueError(
                f"{type(owner).__name__} gives {name!r} by get_extra_state(), and cannot take it: "
                f"write its set_extra_state(), or leave the entry out and pass strict=False"
            )


def copied_entry(value: Any) -> Any:
    """Return a copy of an entry of a ``state_dict()``, with its tensors on the CPU."""

    def copied(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, Tensor)
        return leaf.detach().to("cpu", copy=True) if is_tensor else copy.deepcopy(leaf)

    return pytree.tree_map(copied, value)
