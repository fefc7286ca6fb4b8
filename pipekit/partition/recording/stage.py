"""A stage of a recorded model: a module with the names of the unsplit one."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import nn

from pipekit.partition.recording.model_input import ModelInput
from pipekit.partition.recording.part import Part
from pipekit.trees import Tree


class RecordedStage(nn.Module):
    """Some of a model's modules, and the operations between them.

    Its modules, parameters and buffers are the model's own, under their names there.  In training
    and in evaluation it does what the model does in that mode.

    Args:
        training, evaluation: what to do in either mode.
        exceptions: by mode, the names of modules that the model leaves in the other one then.
        model_input: what the model takes of a batch; None: the stage is not the first.

    Attributes:
        model_input: as given.
    """

    def __init__(
        self,
        training: Part,
        evaluation: Part,
        exceptions: Mapping[bool, Sequence[str]],
        model_input: ModelInput | None,
    ) -> None:
        super().__init__()
        self.model_input = model_input
        self._recorded_parts = (evaluation, training)
        self._exceptions = exceptions

    def forward(self, tree: Tree) -> Tree:
        """Return the tensors that the next stage takes; the last one returns the model's output.

        Args:
            tree: the batch for the first stage; else what the stage before returned.
        """
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
        """Return the names of the unsplit model's modules in it, for ``print`` and profiles."""
        steps = self._recorded_parts[1].steps
        return span(tuple(dict.fromkeys(s.module for s in steps if s.module is not None)))

    def extra_repr(self) -> str:
        """Return how many operations are recorded beside the modules."""
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


def gives(layer: nn.Module) -> tuple[int, ...]:
    """Return the values that a layer hands on in training, by number, if it is a recorded one."""
    return layer._recorded_parts[1].gives if isinstance(layer, RecordedStage) else ()


def span(names: tuple[str, ...]) -> str:
    """Return modules' names in short: of more than two the first and the last."""
    if len(names) > 2:
        return f"{names[0]} ... {names[-1]}"
    return ", ".join(names) or "operations"
