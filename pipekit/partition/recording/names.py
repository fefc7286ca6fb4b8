"""The names that a model's modules, parameters and buffers have; shared ones have several."""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn


class ModelNames:
    """All names in an unsplit model, by which stages get its modules and tensors."""

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

    def homes(self, stages: Sequence[nn.Module]) -> Iterator[tuple[int, str]]:
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
        owner_name, _, local_name = path.rpartition(".")
        owner = self._owner(stage, owner_name)
        if local_name not in owner._modules:
            owner.add_module(local_name, module)

    def _place_tensor(self, stage: nn.Module, name: str) -> None:
        owner_name, _, local_name = name.rpartition(".")
        owner = self._owner(stage, owner_name)
        if local_name in owner._parameters or local_name in owner._buffers:
            return
        holder = self._model.get_submodule(owner_name)
        tensor = getattr(holder, local_name)
        if local_name in holder._parameters:
            owner.register_parameter(local_name, tensor)
        else:
            persistent = local_name not in holder._non_persistent_buffers_set
            owner.register_buffer(local_name, tensor, persistent)

    @staticmethod
    def _owner(stage: nn.Module, path: str) -> nn.Module:
        """Return the module of that name in ``stage``; empty ones are made on the way there."""
        module = stage
        for local_name in path.split(".") if path else []:
            if local_name not in module._modules:
                module.add_module(local_name, nn.Module())
            module = module.get_submodule(local_name)
        return module


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
