"""Workers that are killed in the middle of a training, and how two checkpoints differ."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipekit.engine.checkpoints import files as checkpoints
from tests.engine.examples import Midst


class Struck(Midst):
    """Batches; beside the training, ``strike`` is called when it comes to number ``at``."""

    def __init__(self, batches: Any, at: int, strike: Callable[[], object]) -> None:
        super().__init__(batches, at, lambda: threading.Thread(target=strike).start())


def kill(worker: int) -> None:
    """Send SIGKILL to the processes of a worker.

    Those of earlier pipelines of this process, which may live until they are collected, too.
    """
    for number, pid in worker_processes():
        if number == worker:
            os.kill(pid, signal.SIGKILL)


def worker_processes() -> list[tuple[int, int]]:
    """Return worker and process id of each that is alive, of trainings started here."""
    named = [(p.name.rpartition(" "), p.pid) for p in multiprocessing.active_children()]
    return sorted((int(w), pid) for (name, _, w), pid in named if name == "pipekit worker" and pid)


def differences(one: Path, other: Path) -> list[str]:
    """Return where two checkpoints differ by a bit: "/part/entry/..." of every such value.

    Everything is compared that a checkpoint holds, but not which training wrote it, in which
    attempt.
    """
    first, second = (dict(_values(_parts(home))) for home in (one, other))
    for each in (first, second):
        for name in [n for n in each if n.endswith(("/about/training", "/about/attempt"))]:
            del each[name]
    return [
        name
        for name in sorted({*first, *second})
        if name not in first or name not in second or not _equal(first[name], second[name])
    ]


def _parts(home: Path) -> dict[str, checkpoints.Content]:
    parts = checkpoints.parts_of(home)
    return {f"stage {part.stage}, worker {part.worker}": checkpoints.load(part) for part in parts}


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
