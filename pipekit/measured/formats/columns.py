"""What a file must have to be read: one sentence says what is missing or wrong."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

MOST_STAGES = 10_000


def require_columns(path: Path, rows: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise ValueError if a table lacks columns, or has no rows."""
    missing = [name for name in columns if name not in rows]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}: record them, too")
    if rows.empty:
        raise ValueError(f"{path} has no rows: nothing was recorded")


def require_sound(path: Path, rows: pd.DataFrame) -> None:
    """Raise ValueError if an operation has no times, ends before it begins, or has no stage."""
    took = rows["end_s"] - rows["start_s"]
    wrong = ~np.isfinite(rows["start_s"]) | ~np.isfinite(took) | (took < 0)
    if wrong.any():
        row = rows[wrong].iloc[0]
        raise ValueError(
            f"{path}: an operation ({row.get('kind', row.get('op'))}) of worker {row['worker']} "
            f"begins at {row['start_s']:g} s and ends at {row['end_s']:g} s: the file is damaged"
        )
    if not rows["stage"].between(-1, MOST_STAGES).all():
        raise ValueError(f"{path} has stages beyond {MOST_STAGES}: the file is damaged")
