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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.published.published_set import Row, RowMeasured, RowPrediction
from experiments.published.sets import SETS
from pipekit.performance.constants import DATA_SHEET, NEW_DEVICE, Constants, Fit, Fits, measurements
from pipekit.progress import progress_bar

COVERAGE = 0.8
_FEWEST = 20  # rows that a class needs for an interval of its own; it has its set's else
_OF_ROWS = "row_id", "fold", "kind", "panel", "anomaly", "published_error", "work"
_NUMBERS = "predicted", "measured", "simulated", "memory", "measured_memory", "chance"


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


class CrossValidation(NamedTuple):
    """What the rule gives: rows as :func:`judged` by constants that never saw them, and fits."""

    rows: list[Known]
    judged: pd.DataFrame
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
    by_fold = left_out(rows, "fold")
    widths = half_widths(by_fold)
    # The rule chooses among the half widths of devices as among the rows of one.
    devices = left_out(rows, "device").dropna(subset="distance").groupby(["published", "value"])
    for name, each in devices["distance"].agg(covering).groupby("published"):
        widths.setdefault(str(name), {})[NEW_DEVICE] = covering(each)
    fits = Fits(fit(rows), widths)
    sheets = [one.row.by_data_sheet(fits.constants(one.row.machine)) for one in rows]
    for name, own in judged(rows, sheets).dropna(subset="distance").groupby("published"):
        widths[str(name)][DATA_SHEET] = covering(own["distance"])
    return CrossValidation(rows, by_fold, fits)


def left_out(rows: Iterable[Known], column: str) -> pd.DataFrame:
    """Return the rows that have a column, :func:`judged` by constants of its other values' rows.

    ``value`` is their own.
    """
    having = [one for one in rows if hasattr(one.row, column)]
    values = [getattr(one.row, column) for one in having]
    pairs = [*zip(having, values, strict=True)]
    fits = {
        left: Fits(fit(one for one, own in pairs if own != left), {})
        for left in dict.fromkeys(values)
    }
    outs = [one.row.predicted(fits[own].constants) for one, own in pairs]
    return judged(having, outs).assign(value=values)


def judged(rows: Sequence[Known], outs: Sequence[RowPrediction]) -> pd.DataFrame:
    """Return rows beside what was predicted of each, ``out``.

    ``set`` is ``published`` with the part which is judged alone, and ``distance`` how far the
    prediction is off: |log(measured / predicted)|.
    """
    frame = pd.DataFrame(
        {
            "published": [one.row.name for one in rows],
            "set": [one.row.name + one.row.part for one in rows],
            **{name: [getattr(one.row, name) for one in rows] for name in _OF_ROWS},
            "is_fitted": [bool(one.errors) for one in rows],
            "measured": [one.measured.step_s for one in rows],
            "simulated": [one.measured.simulated_s for one in rows],
            "measured_memory": [one.measured.memory_bytes for one in rows],
            "fits": [one.measured.fits for one in rows],
            "out": outs,
            "predicted": [out.step_s for out in outs],
            "memory": [out.memory_bytes for out in outs],
            "chance": [out.fits for out in outs],
        }
    )
    frame = frame.astype(dict.fromkeys(_NUMBERS, float))
    return frame.assign(distance=np.log(frame["measured"] / frame["predicted"]).abs())


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


def half_widths(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return by set and class the half width of log(measured / predicted)."""
    return {
        name: {
            kind: covering(each if len(each) >= _FEWEST else own["distance"])
            for kind, each in own.groupby("kind", sort=False)["distance"]
        }
        for name, own in rows.dropna(subset="distance").groupby("published", sort=False)
    }


def covering(sizes: Iterable[float]) -> float:
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
