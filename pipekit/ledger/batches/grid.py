"""A grid of parameters: one notebook run at every combination, and one tidy table of it all.

A notebook of a grid leaves its numbers in ``grid.csv``; those of all its runs, each row with the
labels of its combination, become ``<name>.csv`` beside them, as soon as one is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

OWN = "grid.csv"
"""Among a notebook's files."""
_LABEL = 40


@dataclass(frozen=True)
class GridPoint:
    """One combination: its parameters, and of each the label that names its value."""

    parameters: dict[str, Any]
    labels: tuple[tuple[str, str], ...]


def points(grid: Mapping[str, Any], where: str) -> list[GridPoint]:
    """Return all combinations, the last parameter's values changing first; one if there is no grid.

    Args:
        grid: of each parameter the list of its values, or a mapping from labels to values, where a
            value says little or is no part of a file name.
        where: the grid is, for errors.

    Raises:
        ValueError: a parameter has no values, or two of one label.
    """
    axes = [
        [(name, *each) for each in _values(name, values, where)] for name, values in grid.items()
    ]
    return [
        GridPoint(
            {name: value for name, _, value in chosen},
            tuple((name, label) for name, label, _ in chosen),
        )
        for chosen in product(*axes)
    ]


def gather(
    entry: str, folder: Path, runs: Sequence[tuple[Path, tuple[tuple[str, str], ...]]]
) -> None:
    """Write ``<entry>.csv`` into a folder: all rows that the runs of a grid have left so far.

    A column of a run's own that is called as a parameter stays as it is.

    Args:
        entry: the name of the notebook in its file.
        folder: of the batch.
        runs: of each run its own folder and its combination.
    """
    found = []
    for files, point in runs:
        if (files / OWN).exists():
            own = pd.read_csv(files / OWN)
            labels = {name: label for name, label in point if name not in own}
            found.append(own.assign(**labels))
    if found:
        table = pd.concat(found, ignore_index=True)
        first = list(dict.fromkeys(name for _, point in runs for name, _ in point))
        table[[*first, *table.columns.drop(first)]].to_csv(folder / f"{entry}.csv", index=False)


def _values(name: str, values: Any, where: str) -> list[tuple[str, Any]]:
    if isinstance(values, list):
        labelled = [(_label(value), value) for value in values]
    elif isinstance(values, dict):
        labelled = [(str(label), value) for label, value in values.items()]
    else:
        raise ValueError(f"{where}: the grid of {name!r} must be a list of values, not {values!r}")
    labels = [label for label, _ in labelled]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{where}: two values of {name!r} are called {label!r}: name them")
        if not label:
            raise ValueError(f"{where}: a value of {name!r} has no name: write 'name: value'")
    if not labelled:
        raise ValueError(f"{where}: the grid of {name!r} has no values")
    return labelled


def _label(value: Any) -> str:
    """Return a value as part of a file name: 0.01 is 0p01."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    letters = (
        letter if letter.isalnum() or letter == "-" else "p" if letter == "." else "_"
        for letter in text
    )
    return "".join(letters)[:_LABEL].strip("_")
