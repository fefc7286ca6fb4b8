"""Trainings of many settings, each kept on disk as soon as it is done, and compared over seeds."""

import math
import multiprocessing
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle
import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, FiniteFloat, field_validator

from pipekit.engine.transports.processes.forkserver import forkserver
from pipekit.host.provenance import available_cores
from pipekit.progress import progress_bar
from pipekit.reading import read_json
from pipekit.writing import write_whole

S = TypeVar("S")  # a frozen dataclass: all that a training depends on, its seed among it


class Course(BaseModel):
    """What a training gave (measured): numbers by name, each as many, one a point of its course.

    None stands for what is not finite, or was not looked at there.
    """

    points: dict[str, list[FiniteFloat | None]]
    provenance: dict[str, Any] = {}

    @field_validator("points")
    @classmethod
    def _are_equally_many(cls, points: dict[str, Any]) -> dict[str, Any]:
        if len(counts := {len(values) for values in points.values()}) != 1 or counts == {0}:
            raise ValueError(f"it has {sorted(counts)} points of its numbers, not as many of each")
        return points

    @classmethod
    def of(cls, provenance: dict[str, Any], **points: Sequence[float | None]) -> "Course":
        """Return a course; what is not finite becomes None."""
        finite = {
            name: [v if v is not None and math.isfinite(v) else None for v in values]
            for name, values in points.items()
        }
        return cls(points=finite, provenance=provenance)


class Trainings(Generic[S]):
    """Trainings by one function, ``train``; those that the folder has are not run again.

    They run side by side, each in a process on one core: the stages of so small a network wait for
    one another more than they compute.  Who changes the function deletes the folder.
    """

    def __init__(self, train: Callable[[S], Course], folder: Path) -> None:
        self.train, self.folder = train, folder

    def run(self, settings: Sequence[S]) -> pd.DataFrame:
        """Return a row for each training and point: the settings' fields, and the point's numbers.

        A field that is neither number nor text is shown as its text.
        """
        frames = [
            pd.DataFrame(course.points).astype(float).assign(**_columns(each))
            for each, course in zip(settings, self.courses(settings), strict=True)
        ]
        return pd.concat(frames, ignore_index=True)

    def courses(self, settings: Sequence[S]) -> list[Course]:
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = [each for each in settings if not self.file(each).exists()]
        side_by_side([partial(_keep, self.train, each, self.file(each)) for each in missing])
        return [
            read_json(self.file(each), Course, "a training, delete it to train it again")
            for each in settings
        ]

    def file(self, settings: S) -> Path:
        """Return where a training is kept: its fields in words, the whole of it as a checksum."""
        words = (str(value) for value in _columns(settings).values())
        plain = "_".join("".join(c if c.isalnum() or c in ".-" else "-" for c in w) for w in words)
        return self.folder / f"{plain[:150]}_{zlib.crc32(repr(settings).encode()):08x}.json"


def side_by_side(trainings: Sequence[Callable[[], None]]) -> None:
    """Run trainings, each in a process on one core, under a progress bar."""
    cores = min(available_cores(), max(1, len(trainings)))
    with (
        ProcessPoolExecutor(cores, forkserver(), initializer=_begin) as pool,
        progress_bar(total=len(trainings), desc="training", unit="run") as bar,
    ):
        by_value = (cloudpickle.dumps(each) for each in trainings)  # a notebook's function, too
        for done in as_completed([pool.submit(_call, each) for each in by_value]):
            done.result()
            bar.update()


def reached(values: Sequence[float], target: float, times: Sequence[float]) -> float:
    """Return when a target is first reached, between two times by a straight line, or infinity."""
    found = np.flatnonzero(np.asarray(values) >= target)
    if not len(found):
        return math.inf
    if not (after := int(found[0])):
        return times[0]
    (below, above), (before, then) = values[after - 1 : after + 1], times[after - 1 : after + 1]
    return before + (target - below) / (above - below) * (then - before)


def each_seed(frame: pd.DataFrame, by: Sequence[str], target: float) -> pd.DataFrame:
    """Return how each training ended: its last row, and the ``epochs`` after which it reached.

    The columns ``by`` tell trainings apart; ``epochs`` may be infinite.
    """
    rows = []
    for _, run in frame.groupby(list(by), sort=False):
        times = run["epoch"].tolist()
        epochs = reached(run["accuracy"].tolist(), target, times)
        rows.append(run.iloc[-1].to_dict() | {"epochs": epochs})
    return pd.DataFrame(rows).drop(columns="epoch")


def over_seeds(ends: pd.DataFrame, by: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Return means (infinite if any is) and deviations over the seeds: a row for each of ``by``."""
    groups = ends.groupby(list(by), sort=False)
    found = {"seeds": groups.size()}
    for value in values:
        mean = groups[value].agg(lambda each: each.mean(skipna=False))
        found |= {value: mean, f"{value}_std": groups[value].std().where(np.isfinite(mean))}
    return pd.DataFrame(found).reset_index().assign(label="measured")


def _call(training: bytes) -> None:
    cloudpickle.loads(training)()


def _columns(settings: Any) -> dict[str, Any]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in values.items()}


def _keep(train: Callable[[S], Course], settings: S, file: Path) -> None:
    """Train and write the file, whole or not at all: an interrupted study goes on from there."""
    write_whole(file, train(settings).model_dump_json())


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
