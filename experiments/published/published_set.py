"""A set of published trainings: its rows, read from a file by their columns, and predicted."""

import csv
import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from pipekit.choices import require_choice
from pipekit.performance.constants import Constants, measurements
from pipekit.performance.layout import ParallelLayout
from pipekit.reading import read_text

FOLDS = 10
_BYTES = {"memory_gb": 1e9, "peak_memory_bytes": 1, "peak_allocated_gib": 2**30}
_MEASURED = "step_s", "tokens_per_s", "tokens_per_s_per_gpu", "simumax_step_s", *_BYTES
"""Columns that are measured, memory's with their units."""
_SIZE = re.compile(r"\d+(?:\.\d+)?b")  # in a model's name: 70b, 3.8b, and 235b and 22b
Values = Mapping[str, str]  # a row of a file as text, by column
Size = Annotated[NonNegativeInt, BeforeValidator(lambda cell: cell or 0)]  # 0: the cell is empty


@dataclass(frozen=True)
class RowPrediction:
    """What is predicted of a row."""

    step_s: float | None  # None: it cannot be predicted
    basis: str  # what it rests on, or why it cannot be predicted
    memory_bytes: float | None = None  # the largest allocated peak over ranks
    fits: float | None = None  # the probability that the run does not fail
    kind: str = ""  # its class; empty: that of its row

    def columns(self, half_width: float) -> dict[str, float | str | None]:
        """Return what a table has of it, with the interval of a half width in logarithms."""
        step = self.step_s or math.nan
        return {
            "basis": self.basis,
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


@dataclass(frozen=True)
class Row:
    """A row of a set, which a subclass is: a field for each column that a prediction reads."""

    row_id: str  # ends with -1, -2 where one was run again

    name: ClassVar[str]  # of the set, as in the command
    file: ClassVar[str]  # below the folder of measurements
    names: ClassVar[Mapping[str, Collection[str]]] = {}  # that are known, by column
    overheads: ClassVar[tuple[float, ...]] = ()  # candidates, in s; empty: nothing is fitted here
    efficiencies: ClassVar[tuple[float, ...]] = ()  # likewise
    published_error: ClassVar[float | None] = None  # of the publishers' own simulator, a mean
    degrees: ClassVar[Sequence[str]] = ()  # whose product its gpus are, where the README says so

    def __post_init__(self) -> None:
        """Give names that differ from a known one in case, spaces or signs alone that spelling."""
        for column, known in self.names.items():
            spellings = {letters(each): each for each in known}
            own = getattr(self, column)
            object.__setattr__(self, column, spellings.get(letters(own), own))

    @property
    def machine(self) -> str:
        """Framework and device, say "Megatron-Core on H100", whose constants it is predicted by."""
        raise NotImplementedError

    @property
    def work(self) -> float:
        """What a step's seconds are proportional to in the naive floor."""
        raise NotImplementedError

    @property
    def group(self) -> str:
        """Rows of one group are fitted on, or predicted, together."""
        return self.row_id.partition("-")[0]

    @property
    def fold(self) -> int:
        """The fold to which its group is dealt, by a hash."""
        return int(hashlib.sha256(self.group.encode()).hexdigest()[:8], 16) % FOLDS

    @property
    def kind(self) -> str:
        """Its class, each of which has its interval."""
        return "all"

    @property
    def part(self) -> str:
        """The part of the set that it is judged with, as a suffix of the set's name."""
        return ""

    @property
    def panel(self) -> str | None:
        """The rows among which a person would choose; None: nobody chooses among them."""
        return None

    @property
    def anomaly(self) -> str | None:
        """Why it is named an anomaly, by a rule from its configuration; None: it is none."""
        return None

    def predict(self, constants: Constants) -> RowPrediction:
        """Return its prediction; raise ValueError with the reason if there is none."""
        raise NotImplementedError

    def by_data_sheet(self, constants: Constants) -> RowPrediction:
        """Return its prediction without the set's inputs, if it is much less certain."""
        return RowPrediction(None, "")

    @staticmethod
    def measured(values: Values) -> RowMeasured:
        """Return what the columns say that sets measure: seconds or a speed, and bytes."""
        known = {name: float(cell) for name in _MEASURED if (cell := values.get(name))}
        step_s = known.get("step_s")
        if "tokens_per_s_per_gpu" in known:
            known.setdefault("tokens_per_s", known["tokens_per_s_per_gpu"] * float(values["gpus"]))
        if "tokens_per_s" in known:
            tokens = float(values["global_batch_samples"]) * float(values["seq_tokens"])
            step_s = tokens / known["tokens_per_s"]
        sizes = (known[name] * unit for name, unit in _BYTES.items() if name in known)
        simulated_s = known.get("simumax_step_s")
        return RowMeasured(step_s, next(sizes, None), simulated_s=simulated_s)

    def predicted(self, constants: Callable[[str], Constants]) -> RowPrediction:
        """Return its prediction by its machine's constants, or none with the reason.

        For an unknown model stands the closest of those of its size, as 70B, and the basis says so.
        """
        row, notes = self, list[str]()
        try:
            for column, known in self.names.items():
                own = getattr(self, column)
                if own not in known and (alike := _of_the_same_size(own, known)):
                    row = replace(row, **{column: alike})
                    notes.append(f"{column} {own} is unknown and taken for {alike}")
                require_choice(column, getattr(row, column), known)
            found = row.predict(constants(row.machine))
        except ValueError as error:
            return RowPrediction(None, str(error))
        return replace(found, basis="; ".join([found.basis, *notes]), kind=found.kind or row.kind)

    @classmethod
    def read(cls, path: Path) -> list[tuple[Self | RowPrediction, Values]]:
        """Return the rows of a file, each also as text; of one that lacks a number that it does.

        A ValueError names a column that is missing, or the row whose value is not of its type.
        """
        table = [*csv.DictReader(read_text(path).splitlines(), skipinitialspace=True)]
        if not table:
            raise ValueError(f"{path} has no rows: give a table with a line of columns and rows")
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in table[0]]
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)} of {cls.name}")
        shape = TypeAdapter(cls)
        return [(cls._parsed(shape, values, path), values) for values in table]

    @classmethod
    def _parsed(cls, shape: TypeAdapter[Self], values: Values, path: Path) -> Self | RowPrediction:
        place = f"{path}, row {values.get('row_id')}"
        cells = ((each.name, str(values.get(each.name) or "").strip()) for each in fields(cls))
        own = {name: None if cell in ("", "n/a") else cell for name, cell in cells}
        for name, cell in own.items():
            if str(cell).lower() in ("nan", "inf", "-inf"):
                raise ValueError(f"{place}: {name} is {cell}: give a number")
        try:
            row = shape.validate_python(own)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = str(wrong["loc"][0])
            if own[name] is None:
                return RowPrediction(None, f"{name} is missing")
            raise ValueError(f"{place}: {name} is {values.get(name)!r}: {wrong['msg']}") from None
        degrees = [getattr(row, each) for each in cls.degrees]
        printed, product = str(values.get("gpus") or "").strip(), math.prod(degrees)
        if degrees and product and printed and printed not in (str(product), f"{product}.0"):
            named = " x ".join(map("{} {}".format, cls.degrees, degrees))
            return RowPrediction(None, f"{named} is {product}, but gpus is {printed}")
        return row


@dataclass(frozen=True)
class DegreesRow(Row):
    """A row with the degrees of tensor, data and pipeline parallelism."""

    tp: PositiveInt
    dp: PositiveInt
    pp: PositiveInt
    micro_batch_samples: PositiveInt


def _of_the_same_size(name: str, known: Collection[str]) -> str | None:
    """Return the closest of known names with the same numbers of parameters; None: it has none."""
    sizes = {each: _SIZE.findall(each.casefold()) for each in (*known, name)}
    alike = [each for each in known if sizes[each] == sizes[name]] if sizes[name] else []
    return next(iter(get_close_matches(name.casefold(), alike, 1, cutoff=0)), None)


def letters(name: str) -> str:
    """Return the letters and digits of a name, in lower case; 8.0B is 8b, and not 80b."""
    return "".join(filter(str.isalnum, re.sub(r"\.0+(?=b)", "", name.casefold())))


def layout_of(row: Any, **rest: Any) -> ParallelLayout:
    """Return the degrees that a row has, as a layout; ``rest`` are its other fields."""
    names = "tp", "cp", "ep", "pp", "dp"
    degrees: dict[str, Any] = {name: int(getattr(row, name, 1)) for name in names}
    return ParallelLayout(microbatch_samples=int(row.micro_batch_samples), **degrees, **rest)


def given(name: str) -> Path | None:
    """Return a file of inputs below the folder of measurements; None: it is not there."""
    folder = measurements()
    path = folder / name if folder else None
    return path if path and path.exists() else None
