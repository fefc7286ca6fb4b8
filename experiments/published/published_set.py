"""A set of published trainings: its rows, read from a file by their columns, and predicted."""

import csv
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipekit.choices import require_choice
from pipekit.performance.constants import Constants, measurements
from pipekit.performance.layout import ParallelLayout
from pipekit.reading import read_text

Values = Mapping[str, str]
"""A row of a file as text, by column."""
Row = Any
"""A row: a set's own dataclass; ``row_id`` ends with -1, -2 where one was run again."""
_LEAST_ALIKE = 0.4
"""Of a name that stands in for an unknown one (difflib's ratio)."""


@dataclass(frozen=True)
class RowPrediction:
    """What is predicted of a row.

    Attributes:
        step_s: seconds of a step; None: it cannot be predicted, and ``basis`` has the reason.
        basis: what it rests on, in words.
        memory_bytes: the largest allocated peak over ranks.
        fits: the probability that the run does not fail.
        note: why it is less certain than others of its set; empty: it is not.
    """

    step_s: float | None
    basis: str
    memory_bytes: float | None = None
    fits: float | None = None
    note: str = ""

    def columns(self, half_width: float) -> dict[str, float | str | None]:
        """Return what a table has of it, with the interval of a half width in logarithms."""
        step = self.step_s or math.nan
        return {
            "basis": "; ".join(filter(None, (self.basis, self.note))),
            "step_s": step,
            "step_low_s": step * math.exp(-half_width),
            "step_high_s": step * math.exp(half_width),
            "memory_gb": None if self.memory_bytes is None else self.memory_bytes / 1e9,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class RowMeasured:
    """What was measured of a row; None: it was not."""

    step_s: float | None
    memory_bytes: float | None = None
    fits: bool | None = None
    simulated_s: float | None = None  # by the publishers' own simulator


def measured(values: Values) -> RowMeasured:
    """Return what most sets print: ``step_s`` and, if they have it, ``memory_gb``."""
    step, memory = values["step_s"], values.get("memory_gb")
    return RowMeasured(float(step) if step else None, float(memory) * 1e9 if memory else None)


@dataclass(frozen=True)
class Unreadable:
    """A row that lacks a number, and which."""

    row_id: str
    reason: str


@dataclass(frozen=True)
class PublishedSet:
    """A set of rows.

    Attributes:
        name: as in the command.
        file: below the folder of measurements.
        row: a frozen dataclass with a field for each column that a prediction reads.
        machine: a row's framework and device, say "Megatron-Core on H100", whose constants it is
            predicted by.
        predict: a row's prediction by a machine's constants; raises ValueError with the reason if
            there is none.
        work: that a step's seconds are proportional to in the naive floor.
        measured: what the measured columns of a row say.
        group: rows of one group are fitted on, or predicted, together.
        kind: the class of a row, each of which has its interval.
        part: which part of the set a row is judged with, as a suffix of the set's name.
        panel: the rows among which a person would choose; None: nobody chooses among them.
        anomaly: why a row is named an anomaly, by a rule from its configuration; None: it is none.
        published_error: the mean error that the publishers' own simulator has, as they print it.
        overheads: candidates for the overhead, in seconds; empty: nothing is fitted on this set.
        efficiencies: likewise, for the efficiency.
        names: columns with a name, and the names that are known.  The one whose spelling is closest
            stands in for any other, with a note.
    """

    name: str
    file: str
    row: type
    machine: Callable[[Row], str]
    predict: Callable[[Row, Constants], RowPrediction]
    work: Callable[[Row], float]
    measured: Callable[[Values], RowMeasured] = measured
    group: Callable[[Row], str] = lambda row: row.row_id.partition("-")[0]
    kind: Callable[[Row], str] = lambda _: "all"
    part: Callable[[Row], str] = lambda _: ""
    panel: Callable[[Row], str | None] = lambda _: None
    anomaly: Callable[[Row], str | None] = lambda _: None
    published_error: float | None = None
    overheads: tuple[float, ...] = ()
    efficiencies: tuple[float, ...] = ()
    names: Mapping[str, Collection[str]] = field(default_factory=dict)

    def predicted(self, row: Row, constants: Callable[[str], Constants]) -> RowPrediction:
        """Return a row's prediction by its machine's constants, or none with the reason."""
        if isinstance(row, Unreadable):
            return RowPrediction(None, row.reason)
        unknown = [
            column for column, known in self.names.items() if getattr(row, column) not in known
        ]
        try:
            known = self.renamed(row, unknown)
            for column in unknown:
                require_choice(column, getattr(known, column), self.names[column])
            found = self.predict(known, constants(self.machine(known)))
        except ValueError as error:
            return RowPrediction(None, str(error))
        notes = [
            f"{column} {getattr(row, column)} is unknown and taken for {getattr(known, column)}"
            for column in unknown
        ]
        return replace(found, note="; ".join(filter(None, (found.note, *notes))))

    def renamed(self, row: Row, columns: Collection[str]) -> Row:
        """Return a row with the closest other name in some columns; none is close: as it is."""
        names = {
            column: get_close_matches(own, {*self.names[column]} - {own}, 1, _LEAST_ALIKE)
            for column in columns
            for own in [getattr(row, column)]
        }
        close = {column: found[0] for column, found in names.items() if found}
        return replace(row, **close) if close else row

    def read(self, path: Path) -> list[tuple[Row, Values]]:
        """Return the rows of a file, each also as text; one that lacks a number is Unreadable.

        Raises:
            ValueError: it is no table, a column is missing, or a value is not of its column's type;
                the message has the row.
        """
        table = [*csv.DictReader(read_text(path).splitlines())]
        if not table:
            raise ValueError(f"{path} has no rows: give a table with a line of columns and rows")
        columns = self.row.__dataclass_fields__  # type: ignore[attr-defined]
        missing = [name for name in columns if name not in table[0]]
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)} of {self.name}")
        shape: TypeAdapter[Row] = TypeAdapter(self.row)
        return [(self._row(shape, values, path), values) for values in table]

    def _row(self, shape: TypeAdapter[Row], values: Values, path: Path) -> Row:
        columns = self.row.__dataclass_fields__  # type: ignore[attr-defined]
        own = {name: values[name] if values[name] not in ("", "n/a") else None for name in columns}
        place = f"{path}, row {values.get('row_id')}"
        for name, value in own.items():
            if value is not None and value.strip().lower() in ("nan", "inf", "-inf"):
                raise ValueError(f"{place}: {name} is {value}: give a number")
        try:
            return shape.validate_python(own)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = str(wrong["loc"][0])
            if own[name] is None:
                return Unreadable(str(values.get("row_id")), f"{name} is missing")
            raise ValueError(f"{place}: {name} is {values.get(name)!r}: {wrong['msg']}") from None


def layout_of(row: Any, **rest: Any) -> ParallelLayout:
    """Return the degrees that a row has, as a layout; ``rest`` are its other fields."""
    names = ("tp", "cp", "ep", "pp", "dp")
    degrees: dict[str, Any] = {
        name: int(getattr(row, name)) for name in names if hasattr(row, name)
    }
    return ParallelLayout(microbatch_samples=int(row.micro_batch_samples), **degrees, **rest)


def given(name: str) -> Path | None:
    """Return a file of inputs below the folder of measurements; None: it is not there."""
    folder = measurements()
    path = folder / name if folder else None
    return path if path and path.exists() else None
