"""Fits the constants, by one rule for all sets: ``python -m experiments.published.fit``.

A machine's efficiency and overhead are the pair, of the candidates of its sets, with the least mean
of ``|log(predicted / measured)|`` over the rows of the machine that are no named anomalies; each
set that fits them counts alike.  Errors come from rows that were not fitted: the groups of rows are
dealt to ten folds by a hash, and each fold is predicted by the constants of the others; or all rows
of one model, device or number of GPUs are left out in turn.
"""

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from experiments.published.every import SETS
from experiments.published.intervals import Residual, half_widths
from experiments.published.published_set import AnySet, RowMeasured, RowPrediction, Unreadable
from experiments.published.rows import read
from pipekit.performance.constants import FILE, FORM, UNKNOWN, Constants, Fit, Fits
from pipekit.performance.measurements import measurements
from pipekit.progress import progress_bar

FOLDS = 10


@dataclass
class Known:
    """A measured row, the constants tried on it, and its log(predicted / measured) by each."""

    each: AnySet
    row: Any
    measured: RowMeasured
    fold: int
    errors: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.empty(0))
    tried: Sequence[Constants] = ()

    @property
    def judged_in(self) -> str:
        """The set, with the part of it that is judged alone."""
        return self.each.name + self.each.part(self.row)

    @property
    def counts(self) -> bool:
        """Whether constants are fitted on it."""
        usual = self.measured.step_s and self.each.anomaly(self.row) is None
        return bool(self.each.overheads and usual)


def known_rows(each: AnySet) -> list[Known]:
    """Return the rows of the given half of which a step, or whether they fit, was measured."""
    folder = measurements()
    if folder is None:
        raise ValueError("name the folder of the measurements in PIPEKIT_MEASURED")
    if not (folder / each.file).exists():
        return []
    found = [
        Known(each, row, each.measured(values), _fold(each.group(row)))
        for row, values in read(folder / each.file, each)
        if not isinstance(row, Unreadable)
    ]
    return [one for one in found if one.measured.step_s or one.measured.fits is not None]


def _fold(group: str) -> int:
    return int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) % FOLDS


def candidates(sets: Iterable[AnySet]) -> list[Constants]:
    """Return the pairs that are tried for a machine."""
    own = {each.name: each for each in sets}.values()
    pairs = {(e, o) for each in own for e in each.efficiencies for o in each.overheads}
    return list(itertools.starmap(Constants, sorted(pairs)))


def try_all(rows: Sequence[Known]) -> None:
    """Predict rows of one machine that count for the fit by each candidate."""
    tried = candidates(one.each for one in rows)
    for one in rows:
        if one.counts:
            steps = [one.each.predicted(one.row, always(pair)).step_s or math.nan for pair in tried]
            one.errors = np.log(np.array(steps) / (one.measured.step_s or math.nan))
            one.tried = () if np.isnan(one.errors).any() else tried


def always(pair: Constants) -> Callable[[str], Constants]:
    """Return the constants of every machine, if a pair is them."""
    return lambda _: pair


def fit(rows: Iterable[Known]) -> dict[str, Fit]:
    """Return the candidate that the rule chooses for each machine, with the rows of the fit."""
    machines: dict[str, dict[str, list[Known]]] = defaultdict(lambda: defaultdict(list))
    for one in rows:
        if one.tried:
            machines[one.each.machine(one.row)][one.each.name].append(one)
    return {machine: _fit(by_set) for machine, by_set in machines.items()}


def _fit(by_set: Mapping[str, Sequence[Known]]) -> Fit:
    means = [np.mean([np.abs(one.errors) for one in own], axis=0) for own in by_set.values()]
    fitted_on = {name: [one.row.row_id for one in own] for name, own in by_set.items()}
    tried = next(iter(by_set.values()))[0].tried
    return Fit(tried[int(np.argmin(np.sum(means, axis=0)))], fitted_on)


@dataclass(frozen=True)
class CrossValidation:
    """What the rule gives: all rows' predictions by constants that never saw them, and the fits."""

    rows: list[Known]
    predictions: list[RowPrediction]
    fits: Fits

    def residuals(self, without: int | None = None) -> Iterator[Residual]:
        """Yield the set, class, and log(measured / predicted) of rows, but for those of a fold."""
        for one, out in zip(self.rows, self.predictions, strict=True):
            if out.step_s and one.measured.step_s and one.fold != without:
                error = math.log(one.measured.step_s / out.step_s)
                yield one.each.name, one.each.kind(one.row), error

    def unfamiliar(self) -> Iterator[Residual]:
        """Yield likewise what rows would have if all their names were unknown."""
        for one in self.rows:
            if one.each.names and one.measured.step_s:
                row = one.each.renamed(one.row, one.each.names)
                out = one.each.predicted(row, self.fits.constants)
                if out.step_s:
                    yield one.each.name, UNKNOWN, math.log(one.measured.step_s / out.step_s)

    def left_out(self, column: str) -> Iterator[tuple[Known, RowPrediction]]:
        """Yield rows with predictions by constants of rows that have another value in a column."""
        found = _predicted(self.rows, lambda one: getattr(one.row, column, None))
        return zip(self.rows, found, strict=True)


def outcome() -> CrossValidation:
    """Return cross-validated predictions of the given half, and the constants fitted on all."""
    rows = [one for each in SETS.values() for one in known_rows(each)]
    machines = defaultdict(list)
    for one in rows:
        machines[one.each.machine(one.row)].append(one)
    for own in progress_bar(list(machines.values()), desc="fitting"):
        try_all(own)
    predicted = _predicted(rows, lambda one: one.fold)
    found = CrossValidation(rows, predicted, Fits(fit(rows), {}))
    widths = half_widths([*found.residuals(), *found.unfamiliar()])
    return replace(found, fits=replace(found.fits, half_widths=widths))


def _predicted(rows: list[Known], by: Callable[[Known], Hashable]) -> list[RowPrediction]:
    """Return each row's prediction by constants of the rows of all other groups."""
    groups = [by(one) for one in rows]
    fits = {
        left: Fits(fit(one for one, own in zip(rows, groups, strict=True) if own != left), {})
        for left in {*groups}
    }
    return [
        one.each.predicted(one.row, fits[own].constants)
        for one, own in zip(rows, groups, strict=True)
    ]


def write(fits: Fits) -> None:
    """Write the fitted constants where the toolkit reads them."""
    record = {"format": FORM, **asdict(fits)}
    FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(outcome().fits)
