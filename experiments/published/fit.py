"""Fits the constants, by one rule for all sets, for ``python -m experiments.published.table``.

A machine's efficiency and overhead are the pair, of the candidates of its sets, with the least mean
of ``|log(predicted / measured)|`` over the rows of the machine that are no named anomalies; each
set that fits them counts alike.  Errors come from rows that were not fitted: the groups of rows are
dealt to ten folds by a hash, and each fold is predicted by the constants of the others; or all rows
of one model, device or number of GPUs are left out in turn.

80 % intervals follow the conformal rule (Lei et al., Distribution-Free Predictive Inference for
Regression, JASA 2018, section 2.2), on the logarithms of measured / predicted of held-out folds.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

from experiments.published.published_set import Row, RowMeasured, RowPrediction
from experiments.published.sets import SETS
from pipekit.performance.constants import DATA_SHEET, NEW_DEVICE, Constants, Fit, Fits, measurements
from pipekit.progress import progress_bar

COVERAGE = 0.8
_FEWEST = 20  # rows that a class needs for an interval of its own; it has its set's else
Distances = Mapping[str, Mapping[str, list[float]]]
"""|log(measured / predicted)| of rows by set and class."""


@dataclass(frozen=True)
class Known:
    """A measured row, and its |log(predicted / measured)| by each pair of constants tried on it."""

    row: Any
    measured: RowMeasured
    errors: dict[Constants, float] = field(default_factory=dict)

    def try_all(self, candidates: Iterable[Constants]) -> None:
        step_s = self.measured.step_s
        if not (self.row.overheads and step_s and self.row.anomaly is None):
            return
        for pair in candidates:
            out = self.row.predicted(lambda _, pair=pair: pair)
            if out.step_s is None:
                return
            self.errors[pair] = abs(math.log(out.step_s / step_s))


Predicted = tuple[Known, RowPrediction]


class CrossValidation(NamedTuple):
    """What the rule gives: all rows' predictions by constants that never saw them, and the fits."""

    predicted: list[Predicted]
    fits: Fits


def known_rows(each: type[Row]) -> list[Known]:
    """Return the rows of the given half of which a step, or whether they fit, was measured."""
    folder = measurements()
    if folder is None:
        raise ValueError("name the folder of the measurements in PIPEKIT_MEASURED")
    if not (folder / each.file).exists():
        return []
    read = each.read(folder / each.file)
    found = [Known(row, each.measured(values)) for row, values in read if isinstance(row, each)]
    return [one for one in found if one.measured.step_s or one.measured.fits is not None]


def outcome() -> CrossValidation:
    rows = [one for each in SETS.values() for one in known_rows(each)]
    pairs = defaultdict[str, set[tuple[float, float]]](set)
    for one in rows:
        pairs[one.row.machine] |= {*itertools.product(one.row.efficiencies, one.row.overheads)}
    candidates = {name: [*itertools.starmap(Constants, sorted(own))] for name, own in pairs.items()}
    for one in progress_bar(rows, desc="fitting"):
        one.try_all(candidates[one.row.machine])
    predicted = left_out(rows, "fold")
    widths = half_widths(distances(predicted))
    # The rule chooses among the half widths of devices as among the rows of one.
    for name, devices in distances(left_out(rows, "device"), "device").items():
        widths.setdefault(name, {})[NEW_DEVICE] = _covering(map(_covering, devices.values()))
    fits = Fits(fit(rows), widths)
    sheets = ((one, one.row.by_data_sheet(fits.constants(one.row.machine))) for one in rows)
    for name, kinds in distances(sheets).items():
        widths[name][DATA_SHEET] = _covering(itertools.chain.from_iterable(kinds.values()))
    return CrossValidation(predicted, fits)


def left_out(rows: Iterable[Known], column: str) -> list[Predicted]:
    """Return rows that have a column, with predictions by constants of its other values' rows."""
    values = [(one, getattr(one.row, column)) for one in rows if hasattr(one.row, column)]
    fits = {
        left: Fits(fit(one for one, own in values if own != left), {})
        for left in {own for _, own in values}
    }
    return [(one, one.row.predicted(fits[own].constants)) for one, own in values]


def fit(rows: Iterable[Known]) -> dict[str, Fit]:
    machines: dict[str, dict[str, list[Known]]] = defaultdict(lambda: defaultdict(list))
    for one in rows:
        if one.errors:
            machines[one.row.machine][one.row.name].append(one)
    found = {}
    for machine, by_set in machines.items():
        first, *_ = next(iter(by_set.values()))
        sets = list(by_set.values())
        errors = {p: sum(fmean(one.errors[p] for one in own) for own in sets) for p in first.errors}
        fitted_on = {name: [one.row.row_id for one in own] for name, own in by_set.items()}
        found[machine] = Fit(min(errors, key=errors.__getitem__), fitted_on)
    return found


def distances(predicted: Iterable[Predicted], column: str = "kind") -> Distances:
    """Return how far rows are off; ``column`` stands in place of their classes."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, out in predicted:
        if out.step_s and one.measured.step_s:
            distance = abs(math.log(one.measured.step_s / out.step_s))
            found[one.row.name][getattr(one.row, column)].append(distance)
    return found


def half_widths(distances: Distances) -> dict[str, dict[str, float]]:
    """Return by set and class the half width of log(measured / predicted)."""
    found = {}
    for name, kinds in distances.items():
        every = [*itertools.chain.from_iterable(kinds.values())]
        found[name] = {
            kind: _covering(own if len(own) >= _FEWEST else every) for kind, own in kinds.items()
        }
    return found


def _covering(sizes: Iterable[float]) -> float:
    """Return the size that the next one is below with the wanted probability, at least."""
    known = sorted(sizes)
    return known[min(math.ceil(COVERAGE * (len(known) + 1)), len(known)) - 1]


def half_width(widths: Mapping[str, Mapping[str, float]], name: str, kind: str) -> float:
    """Return the half width of a set's class: of an unseen class its set's widest, and of a set
    without rows the median of all."""
    known = [
        half
        for own in ([widths[name]] if name in widths else widths.values())
        for each, half in own.items()
        if each not in (NEW_DEVICE, DATA_SHEET)
    ]
    return widths[name].get(kind, max(known)) if name in widths else median(known)


if __name__ == "__main__":
    outcome().fits.write()
