"""Many trainings, side by side, each kept on disk as soon as it is done."""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from tqdm.auto import tqdm

from pipekit.cores import available_cores
from pipekit.engine.transports.processes import forkserver
from pipekit.provenance import write


class Case(Protocol):
    """All that a training depends on."""

    @property
    def name(self) -> str:
        """All of it, as a file is called."""


C = TypeVar("C", bound=Case)
Record = dict[str, Any]
"""What a training gave, as JSON has it."""


def train_all(cases: Sequence[C], train: Callable[[C], Record], folder: Path) -> list[Record]:
    """Return the record of each case; those that the folder has are not trained again.

    They run side by side, each process on one core, since the stages of so small a network wait for
    one another more than they compute.

    Args:
        cases: what to train.
        train: does so, in a process of its own; a function of a module.
        folder: keeps a JSON file for each case that is done, so that an interrupted study goes on
            from there; a notebook's is ``<results_dir>/trainings``, which outlives an interruption.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [case for case in cases if not _file(case, folder).exists()]
    with (
        ProcessPoolExecutor(
            min(available_cores(), max(1, len(missing))),
            forkserver(),
            initializer=_begin,
        ) as pool,
        tqdm(total=len(missing), desc="training", unit="run") as bar,
    ):
        for done in as_completed([pool.submit(_keep, case, train, folder) for case in missing]):
            done.result()
            bar.update()
    return [json.loads(_file(case, folder).read_text(encoding="utf-8")) for case in cases]


def _begin() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # the engine's limit for each worker
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A kernel that is killed cannot stop its trainings, and its successor would train them again.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _keep(case: C, train: Callable[[C], Record], folder: Path) -> None:
    # Whole or not at all: a study that is interrupted goes on from what is there.
    unfinished = folder / f"{case.name}.part"
    write(unfinished, train(case))
    unfinished.replace(_file(case, folder))


def _file(case: Case, folder: Path) -> Path:
    return folder / f"{case.name}.json"
