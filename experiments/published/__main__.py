"""Predicts each row of a file: ``python -m experiments.published SET CONFIGS.csv OUT.csv``.

CONFIGS.csv has the columns of the set's file that are not measured; OUT.csv gets ``row_id``,
``step_s``, an interval that holds 80 % of measured steps, what it rests on, and, where the set has
them, ``memory_gb`` and ``fits``.
"""

import math
import sys
from pathlib import Path

import pandas as pd

from experiments.published.fit import half_width
from experiments.published.published_set import Row
from experiments.published.sets import SETS
from pipekit.choices import require_choice
from pipekit.performance.constants import fitted

COLUMNS = "row_id", "step_s", "step_low_s", "step_high_s", "basis", "memory_gb", "fits"


def predictions(name: str, configurations: Path) -> pd.DataFrame:
    require_choice("set", name, SETS)
    fits, found = fitted(), []
    for row, values in SETS[name].read(configurations):
        out, half = row.predicted(fits.constants) if isinstance(row, Row) else row, math.nan
        if out.step_s is not None:
            half = half_width(fits.half_widths, name, out.kind)
        found.append({"row_id": str(values["row_id"]).strip(), **out.columns(half)})
    frame = pd.DataFrame(found, columns=COLUMNS)
    return frame.drop(columns=[name for name in ("memory_gb", "fits") if frame[name].isna().all()])


def main(arguments: list[str]) -> None:
    if len(arguments) != 3:
        raise SystemExit(__doc__)
    name, configurations, output = arguments
    try:
        predictions(name, Path(configurations)).to_csv(output, index=False, float_format="%.6g")
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
