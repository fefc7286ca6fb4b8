"""The modules of a model: which stay whole, and the names that they and their tensors have."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from operator import attrgetter

from torch import Tensor, nn

from pipekit.partition.recording.refusal import NotRecordable

SIBLINGS = 3  # children of one class that are blocks: two may be an encoder and a decoder

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)

Wish = Sequence[str | type[nn.Module]]


class Blocks:
    """Which modules of a model stay ``whole``; the forwards of the ``outer`` ones are recorded.

    ``wish`` names them, or classes, of which the outermost instances are meant.
    """

    def __init__(self, model: nn.Module, wish: Wish | None = None) -> None:
        names = find_blocks(model) if wish is None else _wished_blocks(model, wish)
        blocks = {model.get_submodule(name) for name in names}
        paths = [name.split(".")[:n] for name in names for n in range(name.count(".") + 1)]
        self.outer = {model, *(model.get_submodule(".".join(path)) for path in paths)} - blocks
        self.whole: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            around = model.get_submodule(name.rpartition(".")[0])
            if module not in self.outer and around in self.outer:
                self.whole.setdefault(module, name)


def _wished_blocks(model: nn.Module, wish: Wish) -> list[str]:
    named = dict(model.named_modules())
    found: list[str] = []
    for one in wish:
        matching = [
            name
            for name, module in named.items()
            if name == one or (isinstance(one, type) and isinstance(module, one))
        ]
        if not matching:
            raise NotRecordable(
                f"blocks: the model has no module {one!r}; the names are those of "
                f"model.named_modules(), such as {', '.join(list(named)[1:4])}"
            )
        found += [n for n in matching if not any(_is_within(n, other) for other in matching)]
    for inner, outer in permutations(found, 2):
        if _is_within(inner, outer):
            raise NotRecordable(f"blocks: {inner!r} lies within {outer!r}: name one of them")
    return found


def find_blocks(module: nn.Module, name: str = "") -> list[str]:
    """Return the names of the outermost repeated modules; Swin's stages, say, are opened."""
    found: list[str] = []
    siblings = Counter(type(child) for child in module.children() if _is_composed(child))
    listed = isinstance(module, _LISTS)
    for local_name, child in module.named_children():
        path = f"{name}.{local_name}".lstrip(".")
        # A list of others and nothing more is of no class of a network's own.
        is_plain = isinstance(child, (nn.ModuleList, nn.ModuleDict)) or type(child) is nn.Sequential
        if not listed and siblings[type(child)] >= SIBLINGS:
            found.append(path)
        elif is_plain or _holds_repeated(child):
            found += find_blocks(child, path)
        elif listed:
            found.append(path)
        elif not isinstance(child, _LISTS):  # one of torchvision's convolutions with a norm, say
            found += find_blocks(child, path)
    return found


def _is_composed(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and not isinstance(module, nn.Sequential)


def _holds_repeated(module: nn.Module) -> bool:
    """Return whether a list right within ``module`` repeats one class of composed modules."""
    return any(
        count > 1
        for child in (module, *module.children())
        if isinstance(child, _LISTS)
        for count in Counter(type(item) for item in child.children() if _is_composed(item)).values()
    )


def _is_within(inner: str, outer: str) -> bool:
    return inner != outer and (not outer or inner.startswith(f"{outer}."))


class ModelNames:
    """All names in an unsplit model, by which stages get its modules and tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: dict[nn.Module, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self._modules.setdefault(module, []).append(name)

    def fill(self, stage: nn.Module, modules: Iterable[str], weights: Iterable[str]) -> None:
        """Give ``stage`` the model's own modules and tensors of these names."""
        found = [self._model.get_submodule(name) for name in modules]
        # First names first: another name of a module may lie within one of the others.
        paths = [(depth, p, m) for m in found for depth, p in enumerate(self._modules[m])]
        for _, path, module in sorted(paths, key=lambda each: each[0]):
            self._place(stage, path, module)
        for name in weights:
            self._place(stage, name, attrgetter(name)(self._model))

    def homes(self, stages: Sequence[nn.Module]) -> Iterator[tuple[int, str]]:
        """Yield (stage, name) for weights that no forward reads: their other name's or the last."""
        held = [dict(named_tensors(stage)) for stage in stages]
        present = {name for tensors in held for name in tensors}
        home_of = {tensor: n for n, tensors in enumerate(held) for tensor in tensors.values()}
        near = 0
        for name, tensor in named_tensors(self._model):
            if name in present:
                near = home_of[tensor]
            else:
                yield home_of.get(tensor, near), name

    def _place(self, stage: nn.Module, name: str, placed: nn.Module | Tensor) -> None:
        *path, local_name = name.split(".")
        owner = stage
        for each in path:
            if each not in owner._modules:
                owner.add_module(each, nn.Module())
            owner = owner.get_submodule(each)
        if local_name in {*owner._modules, *owner._parameters, *owner._buffers}:
            return
        if isinstance(placed, nn.Module):
            owner.add_module(local_name, placed)
        elif isinstance(placed, nn.Parameter):
            owner.register_parameter(local_name, placed)
        else:
            transient = self._model.get_submodule(".".join(path))._non_persistent_buffers_set
            owner.register_buffer(local_name, placed, local_name not in transient)


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by all their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
