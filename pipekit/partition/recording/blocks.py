"""Which modules of a network stay whole: its repeated blocks, and all that contains none."""

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

from pipekit.partition.recording.refusal import NotRecordable

SIBLINGS = 3
"""So many children of one class make blocks of them (two may be an encoder and a decoder)."""

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)

Wish = Sequence[str | type[nn.Module]]


def find_blocks(model: nn.Module) -> list[str]:
    """Return the names of the outermost repeated modules, in the order of ``named_modules()``.

    Elements of ``nn.ModuleList``, ``nn.ModuleDict`` and ``nn.Sequential`` are blocks, and so are
    three or more children of one class.  An element that has a list of repeated modules itself (a
    stage of a Swin transformer, say) is opened.
    """
    return list(_within("", model))


def wished_blocks(model: nn.Module, wish: Wish) -> list[str]:
    """Return the names of the modules that the user wishes for as blocks.

    Args:
        model: the whole network.
        wish: names of modules, or classes, all of whose outermost instances are meant.

    Raises:
        NotRecordable: nothing in the model answers to a wish, or one block lies within another.
    """
    named = dict(model.named_modules())
    found: list[str] = []
    for one in wish:
        if isinstance(one, str):
            matching = [one] if one in named else []
        else:
            matching = [name for name, module in named.items() if isinstance(module, one)]
            matching = [n for n in matching if not any(_is_within(n, m) for m in matching)]
        if not matching:
            raise NotRecordable(
                f"blocks: the model has no module {one!r}; the names are those of "
                f"model.named_modules(), such as {', '.join(list(named)[1:4])}"
            )
        found += matching
    for inner in found:
        for outer in found:
            if _is_within(inner, outer):
                raise NotRecordable(f"blocks: {inner!r} lies within {outer!r}: name one of them")
    return found


def containers(model: nn.Module, blocks: Sequence[str]) -> set[nn.Module]:
    """Return the modules whose own forward is recorded: the model, and all around a block."""
    found = {model}
    for name in blocks:
        parts = name.split(".")
        found |= {model.get_submodule(".".join(parts[:n])) for n in range(len(parts))}
    return found - {model.get_submodule(name) for name in blocks}


def opaque(model: nn.Module, blocks: Sequence[str]) -> dict[nn.Module, str]:
    """Return the modules that are called as they are, with their names in the model."""
    outer = containers(model, blocks)
    found: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        if module not in outer and model.get_submodule(name.rpartition(".")[0]) in outer:
            found.setdefault(module, name)
    return found


def _within(name: str, module: nn.Module) -> Iterator[str]:
    siblings = Counter(type(child) for child in module.children() if _is_composed(child))
    listed = isinstance(module, _LISTS)
    for local_name, child in module.named_children():
        path = f"{name}.{local_name}" if name else local_name
        if not listed and siblings[type(child)] >= SIBLINGS:
            yield path
        elif _is_plain_list(child) or _holds_repeated(child):
            yield from _within(path, child)
        elif listed:
            yield path
        elif not isinstance(child, _LISTS):  # one of torchvision's convolutions with a norm, say
            yield from _within(path, child)


def _is_plain_list(module: nn.Module) -> bool:
    """Return whether a module is a list of others and nothing more: no class of a network's own."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) or type(module) is nn.Sequential


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
