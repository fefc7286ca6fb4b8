"""Rows of published trainings: read from files against the columns that a set needs."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments.published.published_set import AnySet, Unreadable, Values
from pipekit.performance.measurements import measurements
from pipekit.reading import read_text


def given(name: str) -> Path | None:
    """Return a file of inputs below the folder of measurements; None: it is not there."""
    folder = measurements()
    path = folder / name if folder else None
    return path if path and path.exists() else None


def read(path: Path, each: AnySet) -> list[tuple[Any, Values]]:
    """Return the rows of a file, each as the set's and as text.

    A row in which a number is missing is :class:`Unreadable`.

    Raises:
        ValueError: it is no table, a column is missing, or a value is not of its column's type; the
            message has the row.
    """
    table = [*csv.DictReader(read_text(path).splitlines())]
    if not table:
        raise ValueError(f"{path} has no rows: give a table with a line of columns and its rows")
    columns = [*each.row.__dataclass_fields__]
    missing = [name for name in columns if name not in table[0]]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)} of {each.name}")
    shape = TypeAdapter(each.row)
    return [(_row(shape, values, columns, path), values) for values in table]


def _row(
    shape: TypeAdapter[Any], values: dict[str, str], columns: Sequence[str], path: Path
) -> Any:
    own = {name: values[name] if values[name] not in ("", "n/a") else None for name in columns}
    for name, value in own.items():
        if value is not None and value.strip().lower() in ("nan", "inf", "-inf"):
            raise ValueError(
                f"{path}, row {values.get('row_id')}: {name} is {value}: give a number"
            )
    try:
        return shape.validate_python(own)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = str(wrong["loc"][0])
        if own[name] is None:
            return Unreadable(str(values.get("row_id")), f"{name} is missing")
        raise ValueError(
            f"{path}, row {values.get('row_id')}: {name} is {values.get(name)!r}: {wrong['msg']}"
        ) from None
