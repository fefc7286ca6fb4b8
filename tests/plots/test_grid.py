from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipekit.plots import style
from pipekit.plots.grid import SHADES, grid


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"depth": [1, 2, 4, 1, 2], "width": [1, 1, 1, 2, 2], "speed": [1, 2, 3, np.nan, 6]}
    )


def drawn(table: pd.DataFrame, **more: Any) -> Any:
    how = {"best": (2, 2), "title": "2 by 2 wins", "label": "simulated", "unit": "rows/s"}
    return grid(table, "depth", "width", "speed", missing="does not fit", **{**how, **more})


def centres(trace: Any) -> list[tuple[float, float]]:
    return [(round(x + w / 2, 6), y) for x, w, y in zip(trace.base, trace.x, trace.y, strict=True)]


def test_each_cell_stands_at_its_steps_in_the_shade_of_its_number() -> None:
    cells = {
        (*centre, trace.marker.color): text
        for trace in drawn(frame()).data
        if trace.text
        for centre, text in zip(centres(trace), trace.text, strict=True)
    }
    assert cells == {
        (0, 0, SHADES[0]): "1",
        (1, 0, SHADES[1]): "2",
        (2, 0, SHADES[2]): "3",
        (1, 1, SHADES[4]): "6",
    }


def test_a_cell_without_number_is_hatched_and_the_best_is_framed() -> None:
    *_, missing, best = drawn(frame()).data
    assert (missing.name, missing.marker.pattern.shape, centres(missing)) == (
        "does not fit",
        "x",
        [(0, 1)],
    )
    assert (best.marker.color, centres(best)) == (style.TRANSPARENT, [(1, 1)])


def test_no_number_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no cell of the column 'speed' has a number"):
        drawn(frame().assign(speed=np.nan))
