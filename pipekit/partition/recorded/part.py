"""A run of a program's steps: what one stage does in one mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from pipekit.partition.recorded.boundaries import RowSource
from pipekit.partition.recording.operations import function
from pipekit.partition.recording.program import Program, Step
from pipekit.partition.recording.templates import (
    Node,
    Template,
    Value,
    Weight,
    decode,
    leaves,
    resolver,
    tensors,
)
from pipekit.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Part:
    """Steps that run one after another, and how values come in and go out.

    Attributes:
        steps: what runs.
        frees: for each step, the values that nothing needs after it.
        batch: template of the batch, for the part that is given it; else None.
        shapes: of the batch's tensors: a dimension that grows with the rows is None.
        takes: the values that come in, and whether gradients flow through them.
        gives: the values that go out, for all parts but the last.
        output: template of what the model returns, for the last part; else None.
        row_source: where the number of rows is read, if any step depends on it.
    """

    steps: tuple[Step, ...]
    frees: tuple[tuple[int, ...], ...]
    batch: Template
    shapes: dict[int, tuple[int | None, ...]]
    takes: tuple[tuple[int, bool], ...]
    gives: tuple[int, ...]
    output: Template
    row_source: RowSource | None

    @classmethod
    def of(cls, program: Program, first: int, behind: int, rows: tuple[int, int]) -> Self:
        """Return the part of ``program`` from step ``first`` to ``behind`` - 1."""
        starts, ends = first == 0, behind == len(program.steps)
        carried = program.alive(first)
        gives = () if ends else program.alive(behind)
        kept = [leaf.number for leaf in leaves(program.output) if isinstance(leaf, Value)]
        last_uses = program.last_uses(first, behind, kept if ends else gives)
        shapes = {}
        if starts:
            for leaf in leaves(program.batch):
                if isinstance(leaf, Value):
                    made = program.made[leaf.number]
                    sizes = zip(made.shape, made.other_shape, strict=True)
                    shapes[leaf.number] = tuple(a if a == b else None for a, b in sizes)
        return cls(
            steps=program.steps[first:behind],
            frees=tuple(last_uses),
            batch=program.batch if starts else None,
            shapes=shapes,
            takes=tuple((number, program.made[number].requires_grad) for number in carried),
            gives=gives,
            output=program.output if ends else None,
            row_source=RowSource.find(program, shapes if starts else carried, *rows),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: copies of a stage, as of its weight versions, do the same."""
        return self

    def run(self, modules: nn.Module, tree: Tree) -> Tree:
        """Return what the part gives for what it takes.

        Args:
            modules: holds the modules and weights that the steps name, under these names.
            tree: the batch; or the values that came in, one or a tuple.

        Raises:
            ValueError: the batch has another structure or other lengths than the example had.
        """
        env = self._taken(tree)
        device = next((t.device for t in env.values()), torch.device("cpu"))
        rows = None
        if self.row_source is not None:
            rows = env[self.row_source.value].shape[self.row_source.dimension]
            rows //= self.row_source.times

        def weight(name: str) -> Tensor:
            owner, _, own_name = name.rpartition(".")
            found: Tensor = getattr(modules.get_submodule(owner), own_name)
            return found

        resolve = resolver(env, weight, rows, device)
        for step, freed in zip(self.steps, self.frees, strict=True):
            self._run(step, modules, env, resolve)
            for number in freed:
                env.pop(number, None)
        if self.output is not None:
            return decode(self.output, resolve)
        if len(self.gives) == 1:
            return env[self.gives[0]]
        return tuple(env[number] for number in self.gives)

    def _run(
        self,
        step: Step,
        modules: nn.Module,
        env: dict[int, Tensor],
        resolve: Callable[[Any], Any],
    ) -> None:
        args, kwargs = decode(step.arguments, resolve)
        name = step.operation
        call = modules.get_submodule(step.module or "") if name is None else function(name)
        with torch.set_grad_enabled(step.grad and torch.is_grad_enabled()):
            made = tensors(call(*args, **kwargs))
        env.update(zip(step.results, made, strict=True))

    def _taken(self, tree: Tree) -> dict[int, Tensor]:
        if self.batch is not None:
            env: dict[int, Tensor] = {}
            _match(self.batch, tree, env, "the batch")
            for number, shape in self.shapes.items():
                found = tuple(env[number].shape)
                if len(found) != len(shape) or any(
                    size not in (None, here) for size, here in zip(shape, found, strict=True)
                ):
                    known = ", ".join("rows" if size is None else str(size) for size in shape)
                    raise ValueError(
                        f"the model was recorded for tensors [{known}] and the batch has "
                        f"{list(found)}: pad the batches to one size, or give an example of theirs"
                    )
            return env
        given = (tree,) if isinstance(tree, Tensor) else tree
        # What had no gradient in the whole model gets none here: kernels are chosen by that.
        return {
            number: value if flows else value.detach()
            for (number, flows), value in zip(self.takes, given, strict=True)
        }


def _match(template: Template, tree: Any, env: dict[int, Tensor], where: str) -> None:
    """Put the tensors of a batch into ``env``, by the example's template."""
    if isinstance(template, Value):
        if not isinstance(tree, Tensor):
            raise ValueError(f"{where} must be a tensor, not {type(tree).__name__}")
        env[template.number] = tree
    elif isinstance(template, Node):
        entries: list[tuple[Any, Template]]
        if issubclass(template.type, dict):
            entries = list(zip(template.context, template.children, strict=True))
            missing = [key for key, child in entries if key not in tree and _holds_value(child)]
            unknown = set(tree) - {key for key, _ in entries}
            if missing or unknown:
                raise ValueError(
                    f"{where} must have the example's entries {[key for key, _ in entries]}, and "
                    f"has {list(tree)}"
                )
            entries = [(key, child) for key, child in entries if key in tree]
        else:
            entries = list(enumerate(template.children))
            if not isinstance(tree, (tuple, list)) or len(tree) != len(entries):
                raise ValueError(f"{where} must have {len(entries)} entries, as the example has")
        for key, child in entries:
            _match(child, tree[key], env, f"{where}[{key!r}]")


def _holds_value(template: Template) -> bool:
    return any(isinstance(leaf, (Value, Weight)) for leaf in leaves(template))
