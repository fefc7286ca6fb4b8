"""PipeDream's checkpoints (section 4): what they cost in messages, and what a restart gives."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.pipedream.timelines import MessageCounter
from pipekit.engine import Pipeline, Watch, WorkerDied
from pipekit.engine.checkpoints import files as checkpoints

Epoch = Sequence[tuple[Tensor, Tensor]]


class Struck:
    """Batches; beside the training, ``strike`` is called when it comes to number ``at``."""

    def __init__(self, batches: Any, at: int, strike: Callable[[], object]) -> None:
        self._batches, self._at, self._strike = batches, at, strike

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches):
            if number == self._at:
                threading.Thread(target=self._strike).start()
            yield batch


def worker_processes() -> list[tuple[int, int]]:
    """Return number and process of each worker that is alive, of all pipelines trained here.

    Those of an earlier pipeline may live until it is collected.
    """
    return sorted(
        (int(process.name.rpartition(" ")[2]), process.pid)
        for process in multiprocessing.active_children()
        if process.name.startswith("pipekit worker ") and process.pid
    )


def kill(worker: int) -> None:
    """Send SIGKILL to the processes of a worker that are alive."""
    for number, process in worker_processes():
        if number == worker:
            os.kill(process, signal.SIGKILL)


def coordination(
    build: Callable[[str], Pipeline], epochs: Sequence[Epoch], folder: Path
) -> tuple[int, int]:
    """Count what checkpoints at the end of every epoch make workers send to one another.

    Returns the messages beyond those of a training without checkpoints, and the files that there
    are for each stage and epoch (-1 if not for all alike). Only the last two checkpoints stay.
    """
    without = _messages(build("threads"), epochs, None)
    extra = _messages(build("threads"), epochs, folder) - without
    homes = sorted(folder.iterdir())
    stages = [[part.stage for part in checkpoints.parts_of(home)] for home in homes]
    files = {found.count(stage) for found in stages for stage in found}
    exact = len(homes) == len(epochs) and len(files) == len({*map(len, stages)}) == 1
    return extra, files.pop() if exact else -1


def _messages(pipeline: Pipeline, epochs: Sequence[Epoch], folder: Path | None) -> int:
    """Train, and return how many messages the workers sent."""
    counter = MessageCounter()
    for batches in epochs:
        pipeline.train(batches, watch=Watch(trace=False, observers=[counter]), checkpoints=folder)
    return counter.seen.total()


class Restart(NamedTuple):
    """What came of a training that was killed.

    ``resumed`` epochs were complete on all stages; ``before`` would have been if the newest file of
    one stage had been lost; ``differences`` are those from a training without a kill.
    """

    resumed: int
    before: int
    differences: list[str]


def restart(
    build: Callable[[str], Pipeline], epochs: Sequence[Epoch], worker: int, folder: Path
) -> Restart:
    """Kill -9 a worker in the middle of the last of three or more epochs, and start again."""

    def train(pipeline: Pipeline, where: Path, strike: Callable[[], object] | None = None) -> None:
        for number in range(pipeline.resume(where), len(epochs)):
            batches: Epoch | Struck = epochs[number]
            if strike and number + 1 == len(epochs):
                batches = Struck(epochs[number], len(batches) // 2, strike)
            pipeline.train(batches, watch=Watch(trace=False), checkpoints=where)

    train(build("threads"), folder / "whole")
    killed = folder / "killed"
    try:
        train(build("distributed"), killed, lambda: kill(worker))
    except WorkerDied:
        pass
    else:
        raise RuntimeError("the training ended before the kill: use more batches")

    def complete() -> int:
        home = checkpoints.newest(killed)
        batches = int(home.name.split("-")[1]) if home else 0
        return sum(batches >= sum(map(len, epochs[: n + 1])) for n in range(len(epochs)))

    resumed = complete()
    lost = checkpoints.parts_of(sorted(killed.iterdir())[-1])[0].path
    aside = lost.rename(folder / lost.name)
    before = complete()
    aside.rename(lost)
    train(build("threads"), killed)
    ends = [sorted(where.iterdir())[-1] for where in (folder / "whole", killed)]
    return Restart(resumed, before, differences(*ends))


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
