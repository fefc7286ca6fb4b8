"""Fits the constants, by one rule for all sets, for ``python -m experiments.published.table``.

A machine's efficiency and overhead are the pair, of the candidates of its sets, with the least mean
of ``|log(predicted / measured)|`` over the rows of the machine that are no named anomalies; each
set that fits them counts alike.  Errors come from rows that were not fitted: the groups of rows are
dealt to ten folds by a hash, and each fold is predicted by the constants of the others; or all rows
of one model, device or number of GPUs are left out in turn.

80 % intervals follow the conformal rule (Lei et al., Distribution-Free Predictive Inference for
Regression, JASA 2018, section 2.2), on the logarithms of measured / predicted of held-out folds.
"""

import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Any

from experiments.published.published_set import Row, RowMeasured, RowPrediction, Unreadable
from experiments.published.sets import SETS
from pipekit.performance.constants import NEW_DEVICE, Constants, Fit, Fits, measurements
from pipekit.progress import progress_bar

FOLDS, COVERAGE = 10, 0.8
_FEWEST = 20  # rows that a class needs for an interval of its own; it has its set's else
Residual = tuple[str, str, float]  # a row's set, its class, and log(measured / predicted)


@dataclass
class Known:
    """A measured row, and its |log(predicted / measured)| by each pair of constants tried on it."""

    row: Any
    measured: RowMeasured
    fold: int
    errors: dict[Constants, float] = field(default_factory=dict)

    def try_all(self, candidates: Iterable[Constants]) -> None:
        step_s = self.measured.step_s
        if not (self.row.overheads and step_s and self.row.anomaly is None):
            return
        for pair in candidates:
            out = self.row.predicted(partial(lambda own, _: own, pair))
            if out.step_s is None:
                return
            self.errors[pair] = abs(math.log(out.step_s / step_s))


def known_rows(each: type[Row]) -> list[Known]:
    """Return the rows of the given half of which a step, or whether they fit, was measured."""
    folder = measurements()
    if folder is None:
        raise ValueError("name the folder of the measurements in PIPEKIT_MEASURED")
    if not (folder / each.file).exists():
        return []
    found = [
        Known(row, each.measured(values), _fold(row.group))
        for row, values in each.read(folder / each.file)
        if not isinstance(row, Unreadable)
    ]
    return [one for one in found if one.measured.step_s or one.measured.fits is not None]


def _fold(group: str) -> int:
    return int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) % FOLDS


def fit(rows: Iterable[Known]) -> dict[str, Fit]:
    machines: dict[str, dict[str, list[Known]]] = defaultdict(lambda: defaultdict(list))
    for one in rows:
        if one.errors:
            machines[one.row.machine][one.row.name].append(one)
    return {machine: _fit(by_set) for machine, by_set in machines.items()}


def _fit(by_set: Mapping[str, Sequence[Known]]) -> Fit:
    def error(pair: Constants) -> float:
        return sum(fmean(one.errors[pair] for one in own) for own in by_set.values())

    first, *_ = next(iter(by_set.values()))
    fitted_on = {name: [one.row.row_id for one in own] for name, own in by_set.items()}
    return Fit(min(first.errors, key=error), fitted_on)


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
                yield one.row.name, one.row.kind, error

    def left_out(self, column: str) -> Iterator[tuple[Known, RowPrediction]]:
        """Yield rows with predictions by constants of rows that have another value in a column."""
        rows = [one for one in self.rows if hasattr(one.row, column)]
        return zip(rows, _predicted(rows, lambda one: getattr(one.row, column)), strict=True)

    def new_devices(self) -> Iterator[tuple[str, float]]:
        """Yield by set the half width of steps on a device that is left out whole.

        The rule chooses among the half widths of devices as among the rows of one.
        """
        by_set: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one, out in self.left_out("device"):
            if out.step_s and one.measured.step_s:
                error = abs(math.log(one.measured.step_s / out.step_s))
                by_set[one.row.name][one.row.device].append(error)
        for name, devices in by_set.items():
            yield name, _covering(map(_covering, devices.values()))


def outcome() -> CrossValidation:
    rows = [one for each in SETS.values() for one in known_rows(each)]
    machines = defaultdict(list)
    for one in rows:
        machines[one.row.machine].append(one)
    for own in progress_bar(list(machines.values()), desc="fitting"):
        sets = {type(one.row) for one in own}
        pairs = {pair for e in sets for pair in itertools.product(e.efficiencies, e.overheads)}
        candidates = list(itertools.starmap(Constants, sorted(pairs)))
        for one in own:
            one.try_all(candidates)
    predicted = _predicted(rows, lambda one: one.fold)
    found = CrossValidation(rows, predicted, Fits(fit(rows), {}))
    widths = half_widths(found.residuals())
    for name, half in found.new_devices():
        widths.setdefault(name, {})[NEW_DEVICE] = half
    return replace(found, fits=replace(found.fits, half_widths=widths))


def _predicted(rows: list[Known], by: Callable[[Known], Hashable]) -> list[RowPrediction]:
    """Return each row's prediction by constants of the rows of all other groups."""
    groups = [by(one) for one in rows]
    fits = {
        left: Fits(fit(one for one, own in zip(rows, groups, strict=True) if own != left), {})
        for left in {*groups}
    }
    return [one.row.predicted(fits[own].constants) for one, own in zip(rows, groups, strict=True)]


def half_widths(residuals: Iterable[Residual]) -> dict[str, dict[str, float]]:
    """Return by set and class the half width of log(measured / predicted)."""
    by_set: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, kind, residual in residuals:
        by_set[name][kind].append(abs(residual))
    found = {}
    for name, kinds in by_set.items():
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
        if each != NEW_DEVICE
    ]
    return widths[name].get(kind, max(known)) if name in widths else median(known)


if __name__ == "__main__":
    outcome().fits.write()
