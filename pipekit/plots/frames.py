"""Tables that are to be drawn."""

from collections.abc import Iterable

import pandas as pd


def require(frame: pd.DataFrame, columns: Iterable[str]) -> None:
    """See to it that a frame has rows and these columns.

    Raises:
        ValueError: the frame is empty or lacks a column.
    """
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks the column {missing[0]!r}; it has {[*frame.columns]}")
    if frame.empty:
        raise ValueError("the frame has no rows to draw")
