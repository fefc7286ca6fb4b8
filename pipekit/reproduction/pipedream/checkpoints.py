"""PipeDream's checkpoints (section 4): what they cost in messages, and what a restart gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipekit.engine import checkpoints


def differences(one: Path, other: Path) -> list[str]:
    """Return where two checkpoints differ by a bit: "part/entry/..." of every such value.

    Everything is compared that a checkpoint holds: weights, older versions that are still read,
    buffers, states of optimizer, scheduler and random numbers, losses.
    """
    first, second = (dict(_values(_parts(home))) for home in (one, other))
    return [
        name
        for name in sorted({*first, *second})
        if name not in first or name not in second or not _equal(first[name], second[name])
    ]


def _parts(home: Path) -> dict[str, checkpoints.Content]:
    return {
        f"stage {p.stage}, worker {p.worker}": checkpoints.load(p)
        for p in checkpoints.parts_of(home)
    }


def _values(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts, lists and tuples with their paths."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _values(value, f"{path}/{key}")
    elif isinstance(tree, (list, tuple)):
        yield from _values(dict(enumerate(tree)), path)
    else:
        yield path, tree


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)
