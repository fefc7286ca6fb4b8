"""Many trainings, side by side, each kept on disk as soon as it is done."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from experiments.study.trainings import side_by_side
from pipekit.host.provenance import write


class Named(Protocol):
    """All that a training depends on."""

    @property
    def name(self) -> str:
        """A file name that differs wherever anything else of it does."""


N = TypeVar("N", bound=Named)
Record = dict[str, Any]
"""What a training gave, as JSON has it."""


def train_or_load(configs: Sequence[N], train: Callable[[N], Record], folder: Path) -> list[Record]:
    """Return the record of each training; those that the folder has are not trained again.

    The trainings run side by side, each in a process on one core: the stages of so small a network
    wait for one another more than they compute. ``train`` is a function of a module. The folder
    keeps a JSON file of each training that is done, so that an interrupted study goes on from
    there; a notebook's is ``<results_dir>/trainings``, which outlives an interruption.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [config for config in configs if not _file(config, folder).exists()]
    side_by_side([partial(_keep, each, train, folder) for each in missing])
    return [json.loads(_file(config, folder).read_text(encoding="utf-8")) for config in configs]


def _keep(config: N, train: Callable[[N], Record], folder: Path) -> None:
    # Whole or not at all: a study that is interrupted goes on from what is there.
    unfinished = folder / f"{config.name}.part"
    write(unfinished, train(config))
    unfinished.replace(_file(config, folder))


def _file(config: Named, folder: Path) -> Path:
    return folder / f"{config.name}.json"
