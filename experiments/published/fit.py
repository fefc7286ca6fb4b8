"""Fits the constants, by one rule for all sets: ``python -m experiments.published.fit``.

A machine's efficiency and overhead are the pair, of the candidates of its sets, with the least mean
of ``|log(predicted / measured)|`` over the rows of the machine that are no named anomalies; each
set that fits them counts alike.  Errors come from rows that were not fitted: the groups of rows are
dealt to ten folds by a hash, and each fold is predicted by the constants of the others.
"""

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from experiments.published.every import SETS
from experiments.published.intervals import Residual, half_widths
from experiments.published.published_set import AnySet, RowMeasured, RowPrediction, Unreadable
from experiments.published.rows import read
from pipekit.performance.constants import FILE, FORM, Constants, Fit, Fits
from pipekit.performance.measurements import measurements
from pipekit.progress import progress_bar

FOLDS = 10


@dataclass
class Known:
    """A measured row, and its logarithms of predicted / measured, an entry a candidate."""

    each: AnySet
    row: Any
    measured: RowMeasured
    fold: int
    errors: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.empty(0))

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


def try_all(rows: Iterable[Known], tried: Sequence[Constants]) -> None:
    """Predict rows that count for the fit by each candidate."""
    for one in rows:
        if one.counts:
            steps = [one.each.predicted(one.row, always(pair)).step_s or math.nan for pair in tried]
            one.errors = np.log(np.array(steps) / (one.measured.step_s or math.nan))


def always(pair: Constants) -> Callable[[str], Constants]:
    """Return the constants of every machine, if a pair is them."""
    return lambda _: pair


def fit(rows: Iterable[Known], tried: Sequence[Constants]) -> Fit:
    """Return the candidate that the rule chooses, with the rows that it was fitted on."""
    by_set: dict[str, list[Known]] = defaultdict(list)
    for one in rows:
        if one.counts and not np.isnan(one.errors).any():
            by_set[one.each.name].append(one)
    means = [np.mean([np.abs(one.errors) for one in own], axis=0) for own in by_set.values()]
    fitted_on = {name: [one.row.row_id for one in own] for name, own in by_set.items()}
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


def outcome() -> CrossValidation:
    """Return cross-validated predictions of the given half, and the constants fitted on all."""
    rows = [one for each in SETS.values() for one in known_rows(each)]
    by_machine = defaultdict(list)
    for one in rows:
        by_machine[one.each.machine(one.row)].append(one)
    folds: list[dict[str, Fit]] = [{} for _ in range(FOLDS)]
    machines: dict[str, Fit] = {}
    for machine, own in progress_bar(list(by_machine.items()), desc="fitting"):
        tried = candidates(one.each for one in own)
        if tried:
            try_all(own, tried)
            machines[machine] = fit(own, tried)
            for number, each in enumerate(folds):
                others = [one for one in own if one.fold != number]
                if others:
                    each[machine] = fit(others, tried)
    predicted = [one.each.predicted(one.row, Fits(folds[one.fold], {}).constants) for one in rows]
    found = CrossValidation(rows, predicted, Fits(machines, {}))
    return replace(found, fits=Fits(machines, half_widths(found.residuals())))


def write(fits: Fits) -> None:
    """Write the fitted constants where the toolkit reads them."""
    record = {"format": FORM, **asdict(fits)}
    FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(outcome().fits)
