"""A stage of a recorded model: a module with the names of the unsplit one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from pipekit.partition.recorded.model_input import ModelInput
from pipekit.partition.recorded.part import Part
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
        return span(tuple(dict.fromkeys(s.block[0] for s in steps if s.block is not None)))

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


class Names:
    """All names of a model's modules, parameters and buffers; shared ones have several.

    Args:
        model: the unsplit model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: dict[nn.Module, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self._modules.setdefault(module, []).append(name)
        self._tensors: dict[Tensor, list[str]] = {}
        for name, tensor in _named_tensors(model):
            self._tensors.setdefault(tensor, []).append(name)

    def fill(self, stage: nn.Module, modules: Iterable[str], weights: Iterable[str]) -> None:
        """Give ``stage`` the model's own modules and tensors of these names."""
        found = [self._model.get_submodule(name) for name in modules]
        # First names first: another name of a module may lie within one of the others.
        paths = [(depth, p, m) for m in found for depth, p in enumerate(self._modules[m])]
        for _, path, module in sorted(paths, key=lambda each: each[0]):
            self._place_module(stage, path, module)
        for name in weights:
            self._place_tensor(stage, name)

    def homes(self, stages: list[nn.Module]) -> Iterator[tuple[int, str]]:
        """Yield, for names that no stage has, (stage, name): that of its other name, or the last.

        So a weight that no forward reads stays part of the model, near its neighbours.
        """
        held = [dict(_named_tensors(stage)) for stage in stages]
        present = {name for tensors in held for name in tensors}
        home_of = {tensor: n for n, tensors in enumerate(held) for tensor in tensors.values()}
        near = 0
        for name, tensor in _named_tensors(self._model):
            if name in present:
                near = home_of[tensor]
            else:
                yield home_of.get(tensor, near), name

    def aliases(self) -> list[list[str]]:
        """Return the names of each trained parameter that has several."""
        return [
            names
            for tensor, names in self._tensors.items()
            if len(names) > 1 and isinstance(tensor, nn.Parameter)
        ]

    def _place_module(self, stage: nn.Module, path: str, module: nn.Module) -> None:
        owner_name, _, own_name = path.rpartition(".")
        owner = self._owner(stage, owner_name)
        if own_name not in owner._modules:
            owner.add_module(own_name, module)

    def _place_tensor(self, stage: nn.Module, name: str) -> None:
        owner_name, _, own_name = name.rpartition(".")
        owner = self._owner(stage, owner_name)
        if own_name in owner._parameters or own_name in owner._buffers:
            return
        original = self._model.get_submodule(owner_name)
        tensor = getattr(original, own_name)
        if own_name in original._parameters:
            owner.register_parameter(own_name, tensor)
        else:
            persistent = own_name not in original._non_persistent_buffers_set
            owner.register_buffer(own_name, tensor, persistent)

    @staticmethod
    def _owner(stage: nn.Module, path: str) -> nn.Module:
        """Return the module of that name in ``stage``; empty ones are made on the way there."""
        module = stage
        for own_name in path.split(".") if path else []:
            if own_name not in module._modules:
                module.add_module(own_name, nn.Module())
            module = module.get_submodule(own_name)
        return module


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
